"""Whether what should learn gets a gradient, and moves: looked at once, early in a run. Runs in rank 0.

A loss that stays flat looks the same whether nothing is trained or training does nothing. Both are facts about
parameters, so they are measured there and written beside the losses.
"""

from __future__ import annotations

from typing import Any

#: the optimizer step that is looked at: under LoRA the first matrices get their gradient only in the second
LOOK_AT_STEP = 3
#: names told at most
MAX_NAMES = 12


class Movement:
    """Looks at gradients, and at whether the optimizer moves what has one, in the third step of this process.

    Args:
        trainable: what should learn, by name.
        has_experts: experts to which no token was sent have no gradient, and are no fault.
    """

    def __init__(self, trainable: dict[str, Any], has_experts: bool) -> None:
        self._trainable = {name: p for name, p in trainable.items() if p.numel()}
        self._has_experts = has_experts
        self._before: dict[str, tuple[int, float]] = {}
        self._steps = 0

    def see_gradients(self) -> None:
        """Call it with all gradients of a step there."""
        if self._steps + 1 != LOOK_AT_STEP:
            return
        self._before.clear()
        for name, parameter in self._trainable.items():
            if parameter.grad is None or not bool(parameter.grad.any()):
                continue
            # where the gradient is largest: rows of an embedding whose tokens do not come stay as they are
            place = int(parameter.grad.abs().argmax())
            self._before[name] = place, float(parameter.detach().reshape(-1)[place])

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
        silent = [name for name in self._trainable if name not in self._before]
        still = [name for name, (place, value) in self._before.items() if self._value(name, place) == value]
        if self._has_experts and len(silent) < len(self._trainable):
            silent = []
        return {
            "trainable_tensors": len(self._trainable),
            "without_gradient": len(silent),
            "without_gradient_names": silent[:MAX_NAMES],
            "unmoved": len(still),
            "unmoved_names": still[:MAX_NAMES],
        }

    def _value(self, name: str, place: int) -> float:
        return float(self._trainable[name].detach().reshape(-1)[place])
