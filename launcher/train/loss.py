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
_CHUNK_NUMBERS = 1 << 26


class Objective(torch.nn.Module):
    """A causal model with its loss as forward pass.

    Args:
        by_places: compute logits at label places alone; needs a model whose logits are head(last hidden state).
    """

    def __init__(self, causal: Any, by_places: bool) -> None:
        super().__init__()
        self.causal = causal
        self.by_places = by_places

    def forward(self, batch: Batch) -> Any:
        """The loss summed over the label tokens of a batch, in float32; 0 with gradients of 0 for an empty one."""
        if self.by_places:
            output = self.causal.base_model(
                input_ids=batch.input_ids, position_ids=batch.position_ids, attention_mask=batch.mask,
                use_cache=False,
            )  # fmt: skip
            return self._sum_chunks(output[0].flatten(0, 1)[batch.label_places], batch.targets)
        logits = self.causal(
            input_ids=batch.input_ids,
            position_ids=batch.position_ids,
            attention_mask=batch.mask,
            use_cache=False,
        ).logits
        return sum_losses(logits.flatten(0, 1)[batch.label_places], batch.targets)

    def _sum_chunks(self, hidden: Any, targets: Any) -> Any:
        head = self.causal.get_output_embeddings()
        size = max(256, _CHUNK_NUMBERS // self.causal.config.vocab_size)
        if len(targets) <= size:
            return sum_losses(head(hidden), targets)
        total = hidden.new_zeros((), dtype=torch.float32)
        for start in range(0, len(targets), size):
            total = total + checkpoint(
                lambda h, t: sum_losses(head(h), t),
                hidden[start : start + size], targets[start : start + size], use_reentrant=False,
            )  # fmt: skip
        return total


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
