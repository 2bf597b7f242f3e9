"""Whether what should learn gets a gradient, and moves: looked at once, early in a run. Runs in rank 0.

A loss that stays flat looks the same whether nothing is trained or training does nothing. Both are facts about
parameters, so they are measured there and written beside the losses.
"""

from __future__ import annotations

from typing import Any

#: the optimizer step that is looked at: under LoRA the first matrices get their gradient only in the second
LOOK_AT_STEP = 3
#: numbers of each parameter that are compared
SAMPLE = 64
#: names told at most
MAX_NAMES = 12


class Movement:
    """Compares parameters of a model between the start and the third step of this process.

    Args:
        trainable: what should learn, by name.
        has_experts: experts to which no token was sent have no gradient, and are no fault.
    """

    def __init__(self, trainable: dict[str, Any], has_experts: bool) -> None:
        self._trainable = {name: p for name, p in trainable.items() if p.numel()}
        self._has_experts = has_experts
        self._before = {name: _take_sample(p) for name, p in self._trainable.items()}
        self._silent: list[str] = []
        self._steps = 0

    def see_gradients(self) -> None:
        """Call it with all gradients of a step there."""
        if self._steps + 1 == LOOK_AT_STEP:
            self._silent = [
                name for name, p in self._trainable.items() if p.grad is None or not bool(p.grad.any())
            ]

    def see_step(self, was_skipped: bool) -> dict[str, Any]:
        """Call it after the optimizer's step; returns what was found, once, and else nothing.

        Args:
            was_skipped: a loss scaler left the step out.
        """
        if was_skipped or self._steps >= LOOK_AT_STEP:
            return {}
        self._steps += 1
        if self._steps < LOOK_AT_STEP:
            return {}
        still = [
            name for name, p in self._trainable.items() if bool((_take_sample(p) == self._before[name]).all())
        ]
        self._before.clear()
        total, silent = len(self._trainable), self._silent
        if self._has_experts and max(len(silent), len(still)) < total:
            silent, still = [], []
        return {
            "trainable_tensors": total,
            "without_gradient": len(silent),
            "without_gradient_names": silent[:MAX_NAMES],
            "unmoved": len(still),
            "unmoved_names": still[:MAX_NAMES],
        }


def _take_sample(parameter: Any) -> Any:
    flat = parameter.detach().reshape(-1)
    # spread over the whole: rows of an embedding whose tokens never come do not move
    return flat[:: max(1, flat.numel() // SAMPLE)][:SAMPLE].clone()
