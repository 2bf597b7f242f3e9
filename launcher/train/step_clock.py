"""Where a rank's part of a step goes: making tensors, computing forward. Runs in every rank.

The whole step takes every rank equally long, since all wait for the slowest where gradients are summed. What a rank
does before that, its batches and its forward passes, tells the slow one from those that wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StepClock:
    """Seconds of one step of this rank.

    Attributes:
        wait_s: spent on making tensors, when the card has nothing to do.
    """

    def __init__(self, device: Any) -> None:
        self._on_card = device.type == "cuda"
        self._pairs: list[tuple[Any, Any]] = []
        self._forward_s = 0.0
        self.wait_s = 0.0

    @contextmanager
    def data(self) -> Iterator[None]:
        """Around the making of a micro-batch."""
        before = time.perf_counter()
        yield
        self.wait_s += time.perf_counter() - before

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Around a forward pass; on a card it is timed there, since the call returns before it has run."""
        if not self._on_card:
            before = time.perf_counter()
            yield
            self._forward_s += time.perf_counter() - before
            return
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        yield
        end.record()
        self._pairs.append((begin, end))

    def own_s(self) -> float:
        """Seconds of this rank's own work; call it once the card has done all of it."""
        on_card = sum(begin.elapsed_time(end) for begin, end in self._pairs) / 1000
        return self.wait_s + self._forward_s + on_card
