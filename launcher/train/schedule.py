"""Step -> learning rate, as a pure function: a run that goes on needs no scheduler's state."""

from __future__ import annotations

import math


def rate_factor(step: int, num_steps: int, warmup_ratio: float, scheduler: str) -> float:
    """The share of the highest rate at a step (1 is the first): rising during the warm-up, then falling by its kind."""
    warmup = math.ceil(num_steps * warmup_ratio)
    if step <= warmup:
        return step / warmup
    if scheduler == "constant":
        return 1.0
    done = (step - 1 - warmup) / max(1, num_steps - warmup)
    return 1.0 - done if scheduler == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
