"""The next step's first micro-batch, made while the card is still busy with this step. Runs in every rank."""

from __future__ import annotations

from typing import Any

from launcher.train.data import Batch, Tokens, make_batch
from launcher.train.pack import MicroBatch, PackLimits


class Ahead:
    """Holds one micro-batch that was made before it was asked for."""

    def __init__(self) -> None:
        self._held: tuple[Tokens, MicroBatch, Batch] | None = None

    def prepare(self, tokens: Tokens, micro: MicroBatch, device: Any, limits: PackLimits) -> None:
        """Make a micro-batch now; on a CPU nothing is gained by that, and nothing is done."""
        if device.type == "cuda":
            self._held = tokens, micro, make_batch(tokens, micro, device, limits)

    def take(self, tokens: Tokens, micro: MicroBatch, device: Any, limits: PackLimits) -> Batch:
        """The micro-batch: the one that is held if it is that, else a new one."""
        held, self._held = self._held, None
        if held is not None and held[0] is tokens and held[1] == micro:
            return held[2]
        return make_batch(tokens, micro, device, limits)
