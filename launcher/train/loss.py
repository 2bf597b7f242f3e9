"""Hidden states -> the sum of the loss over label tokens. Runs in every rank, inside the engine's wrapper.

The head is applied to label places alone and in chunks, so that no [all tokens, vocabulary] tensor exists. Sums and
not means: they add up over packs, ranks and accumulation to the same number however rows were split.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from launcher.train.data import Batch

#: logits of one chunk, in numbers
_CHUNK_NUMBERS = 1 << 27


class Objective(torch.nn.Module):
    """A causal model with its loss as forward pass.

    Args:
        by_places: compute logits at label places alone; needs a model whose logits are head(last hidden state).
        dtype: the format that is computed in; None: that of the hidden states.
    """

    def __init__(self, causal: Any, by_places: bool, dtype: Any = None) -> None:
        super().__init__()
        self.causal = causal
        self.by_places = by_places
        self.dtype = dtype

    def forward(self, batch: Batch, predict: bool = False) -> Any:
        """The loss summed over the label tokens of a batch, in float32; 0 with gradients of 0 for an empty one.

        With ``predict`` the likeliest next token at each label place instead.
        """
        if predict:
            return self._predict(batch)
        if self.by_places:
            output = self.causal.base_model(**self._inputs(batch))
            return self._sum_chunks(output[0].flatten(0, 1)[batch.label_places], batch.targets)
        logits = self.causal(**self._inputs(batch)).logits
        return sum_losses(logits.flatten(0, 1)[batch.label_places], batch.targets)

    def _predict(self, batch: Batch) -> Any:
        inputs = {"input_ids": batch.input_ids, "position_ids": batch.position_ids, "use_cache": False}
        if self.by_places:
            hidden = self.causal.base_model(**inputs)[0].flatten(0, 1)[batch.label_places]
            return self.causal.get_output_embeddings()(hidden).argmax(-1)
        return self.causal(**inputs).logits.flatten(0, 1)[batch.label_places].argmax(-1)

    def _sum_chunks(self, hidden: Any, targets: Any) -> Any:
        head = self.causal.get_output_embeddings()
        size = max(256, _CHUNK_NUMBERS // self.causal.config.vocab_size)
        dtype = self.dtype or hidden.dtype
        if _is_fixed(head, dtype):
            return _FixedHeadLoss.apply(hidden.to(dtype), head.weight.to(dtype), targets, size)
        if len(targets) <= size:
            return sum_losses(head(hidden), targets)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), size):
            total = total + checkpoint(
                lambda h, t: sum_losses(head(h), t),
                hidden[start : start + size], targets[start : start + size], use_reentrant=False,
            )  # fmt: skip
        return total

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """What a model is called with; names of rows' starts are those of transformers' flash attention."""
        mask = batch.mask
        if mask is not None and self.dtype is not None and batch.mask.device.type == "cuda":
            mask = mask.to(self.dtype)  # once, and not in each block
        known = {
            "input_ids": batch.input_ids, "position_ids": batch.position_ids, "attention_mask": mask,
            "use_cache": False,
        }  # fmt: skip
        if batch.starts is not None:
            known |= {"cu_seq_lens_q": batch.starts, "cu_seq_lens_k": batch.starts,
                      "max_length_q": batch.longest, "max_length_k": batch.longest}  # fmt: skip
        return known


def _is_fixed(head: Any, dtype: Any) -> bool:
    """Whether the head is a plain frozen layer; fp16 is left out, whose small gradients need the loss scale early."""
    return (
        type(head) is torch.nn.Linear and head.bias is None and not head.weight.requires_grad
        and not hasattr(head.weight, "ds_id") and torch.is_grad_enabled() and dtype != torch.float16
    )  # fmt: skip


class _FixedHeadLoss(torch.autograd.Function):
    """The loss of a frozen head with its gradient in the same pass: nothing is computed twice or kept in between."""

    @staticmethod
    def forward(ctx: Any, hidden: Any, weight: Any, targets: Any, size: int) -> Any:
        gradient, total = torch.empty_like(hidden), hidden.new_zeros((), dtype=torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(targets), size):
                places, wanted = hidden[start : start + size], targets[start : start + size, None]
                slopes = torch.log_softmax(places @ weight.t(), -1, dtype=torch.float32)
                total -= slopes.gather(1, wanted).sum()
                slopes.exp_().scatter_add_(1, wanted, slopes.new_full((1, 1), -1.0).expand_as(wanted))
                torch.mm(slopes.to(hidden.dtype), weight, out=gradient[start : start + size])
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return (ctx.saved_tensors[0] * grads[0]).to(ctx.saved_tensors[0].dtype), None, None, None


def sum_losses(logits: Any, targets: Any) -> Any:
    """Cross entropy in float32, summed."""
    return torch.nn.functional.cross_entropy(logits.float(), targets, reduction="sum")


def can_use_places(causal: Any, device: Any) -> bool:
    """Whether logits are nothing but head(last hidden state), found by comparing both on a few tokens.

    Some models scale or cap their logits, or keep their decoder elsewhere.
    """
    head = causal.get_output_embeddings()
    if head is None or causal.base_model is causal:
        return False
    ids = torch.arange(1, 9, device=device)[None] % causal.config.vocab_size
    was_training = causal.training
    causal.eval()
    try:
        with torch.no_grad():
            whole = causal(input_ids=ids, use_cache=False).logits
            ours = head(causal.base_model(input_ids=ids, use_cache=False)[0])
    finally:
        causal.train(was_training)
    if whole.shape != ours.shape:
        return False
    return bool(torch.allclose(whole.float(), ours.float(), rtol=1e-3, atol=1e-3))
