"""Model + card -> how much of what the card can compute a step uses (MFU). Runs in rank 0.

Counted is what a step must compute and no more: products of real tokens with weights, their way back, and attention
inside each row. What is computed twice to save memory, padding, and logits at places that are not learnt are left out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from launcher.train.model import decoder_layers

#: dense 16-bit TFLOP/s of the makers' data sheets, by what torch calls the card; the first that fits
_SHEETS = (
    ("H100 PCIe", 756.0), ("H100 NVL", 835.0), ("H100", 989.0), ("H200", 989.0), ("A100", 312.0), ("A800", 312.0),
    ("L40S", 362.0), ("MI300X", 1307.0),
)  # fmt: skip
#: products of [SIZE, SIZE], for so many seconds, where no data sheet is known
_SIZE, _WARM_S, _MEASURE_S = 4096, 0.2, 0.3


@dataclass(frozen=True, slots=True)
class Work:
    """Floating point operations of a training step.

    Attributes:
        per_token: of each real token, in the decoder's products with weights.
        per_label: of each token that is learnt, in the head.
        per_square: of each row, times its length squared, in attention.
    """

    per_token: float
    per_label: float
    per_square: float

    def count(self, lengths: Sequence[int], num_labels: int) -> float:
        """Of a step whose rows have these lengths."""
        squares = sum(length * length for length in lengths)
        return self.per_token * sum(lengths) + self.per_label * num_labels + self.per_square * squares


@dataclass(frozen=True, slots=True)
class Meter:
    """What a step's figures are made from.

    Attributes:
        work: None for a model whose work is not known from its shape.
        peak: TFLOP/s of one card; None where it is not known. ``source`` says where it is from.
    """

    work: Work | None
    peak: float | None
    source: str
    num_cards: int

    def describe(self) -> str:
        """What the user is told of it; empty where there is nothing to tell."""
        return f"MFU against {self.peak:.4g} TFLOP/s a card: {self.source}" if self.work and self.peak else ""

    def measure(self, lengths: Sequence[int], num_labels: int, step_s: float) -> dict[str, float | None]:
        """``tflops`` of each card on average, and ``mfu``, their share of the peak; None where not known."""
        if self.work is None:
            return {"tflops": None, "mfu": None}
        tflops = self.work.count(lengths, num_labels) / step_s / self.num_cards / 1e12
        return {"tflops": tflops, "mfu": tflops / self.peak if self.peak else None}


def count_work(causal: Any) -> Work:
    """The work of a model whose trainable parameters are chosen.

    A weight costs 2 operations a token on the way there, 2 for the gradient of its inputs from the first block with
    something that learns on, 2 for its own where it learns: 2 N and 4 N for N weights that all learn (Kaplan et al., 2020,
    Scaling Laws for Neural Language Models, 2.1; Chowdhery et al., 2022, PaLM, appendix B, which MFU is from). Attention:
    4 d T^2 a block and row of T tokens, with d = heads x their size (PaLM, appendix B), half of it for a causal model;
    twice that on the way back.
    """
    config = causal.config.get_text_config() if hasattr(causal.config, "get_text_config") else causal.config
    heads = getattr(config, "num_attention_heads", 0) or 0
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // max(1, heads)
    embeddings, head = causal.get_input_embeddings(), causal.get_output_embeddings()
    learns = any(p.requires_grad for p in embeddings.parameters())
    in_blocks = in_attention = 0.0
    for block in decoder_layers(causal)[1]:
        learns = learns or any(p.requires_grad for p in block.parameters())
        in_blocks += _count_products(block, learns)
        in_attention += 2.0 * heads * size * (3 if learns else 1)
    return Work(in_blocks, _count_products(head, True) if head is not None else 0.0, in_attention)


def _count_products(part: Any, has_way_back: bool) -> float:
    """Operations a token in the linear layers of a part of the model."""
    import torch
    from transformers.pytorch_utils import Conv1D

    total = 0.0
    for name, module in part.named_modules():
        # what peft keeps of a module that is trained whole beside it
        if isinstance(module, torch.nn.Linear | Conv1D) and "original_module" not in name.split("."):
            weight = module.weight
            # under ZeRO-3 a rank holds an empty shell
            number = getattr(weight, "ds_numel", weight.numel())
            total += number * (2.0 + 2.0 * has_way_back + 2.0 * weight.requires_grad)
    return total


def find_peak(given: float | None, device: Any, dtype: Any) -> tuple[float | None, str]:
    """TFLOP/s that a card can do, and where that is from: the recipe, its data sheet, or what products reach here."""
    import torch

    if given is not None:
        return given, "train.peak_tflops"
    if device.type != "cuda":
        return None, ""
    name = torch.cuda.get_device_name(device)
    known = [peak for word, peak in _SHEETS if word in name]
    if known and dtype != torch.float32 and "MIG" not in name.split():
        return known[0], f"data sheet of {name}"
    try:
        rate = measure_products(device, dtype)
    except RuntimeError:  # of memory, or an operator that is missing: a figure less is no reason to end
        return None, ""
    return rate, f"products of {_SIZE} x {_SIZE} in {str(dtype).split('.')[-1]}, measured at the start"


def measure_products(device: Any, dtype: Any, size: int = _SIZE) -> float:
    """TFLOP/s of products of [size, size], in half a second; the card is waited for."""
    import torch

    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    rate = 0.0
    for seconds in (_WARM_S, _MEASURE_S):
        count, begun = 0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for _ in range(10):
                left @ right
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            count += 10
        rate = count * 2 * size**3 / (time.perf_counter() - begun) / 1e12
    return rate


def make_meter(causal: Any, has_experts: bool, peak: tuple[float | None, str], num_cards: int) -> Meter:
    """The meter of a run; models of experts use a part of their weights, which this does not know."""
    return Meter(None if has_experts else count_work(causal), *peak, num_cards)
