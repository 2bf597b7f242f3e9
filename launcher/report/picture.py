"""A run at a moment, as the live view draws it: collected from rows of metrics and of nodes. Runs on the head; pure."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.launch.board import NodeRow

#: points of the curve that are kept; of a longer run neighbours become one
MOST_POINTS = 1024
#: the last steps that say which rank is the slowest
WATCHED_STEPS = 50


@dataclass
class Picture:
    """All that the live view shows.

    Attributes:
        title: the run's name.
        total_steps: None when not known.
        started: when the run began, in seconds since the epoch.
        row: the newest row of metrics.
        evals: (step, validation loss).
        hosts_of_ranks: host of each rank.
        changed: grows with every row of metrics: what was drawn from fewer is old.
    """

    title: str
    total_steps: int | None
    started: float
    hosts_of_ranks: Sequence[str] = ()
    nodes: Sequence[NodeRow] = ()
    step: int = 0
    row: dict[str, Any] = field(default_factory=dict)
    losses: list[tuple[int, float]] = field(default_factory=list)
    evals: list[tuple[int, float]] = field(default_factory=list)
    step_s: float | None = None
    changed: int = 0
    _stride: int = 1
    _waiting: list[tuple[int, float]] = field(default_factory=list)
    _slowest: deque[int] = field(default_factory=lambda: deque(maxlen=WATCHED_STEPS))

    def add_row(self, step: int, data: Mapping[str, Any]) -> None:
        """Take a row of metrics.jsonl."""
        self.changed += 1
        self.step = step
        self.row = dict(data)
        step_s = _number(data.get("step_s"))
        if step_s is not None:
            self.step_s = step_s if self.step_s is None else 0.9 * self.step_s + 0.1 * step_s
        loss, eval_loss = _number(data.get("loss")), _number(data.get("eval_loss"))
        if loss is not None and math.isfinite(loss):
            self._add_loss(step, loss)
        if eval_loss is not None and math.isfinite(eval_loss):
            self.evals = [*self.evals[-MOST_POINTS:], (step, eval_loss)]
        if isinstance(data.get("slowest_rank"), int):
            self._slowest.append(data["slowest_rank"])

    def _add_loss(self, step: int, loss: float) -> None:
        self._waiting.append((step, loss))
        if len(self._waiting) < self._stride:
            return
        self.losses.append(_mean(self._waiting))
        self._waiting.clear()
        if len(self.losses) > MOST_POINTS:
            pairs = zip(self.losses[::2], self.losses[1::2], strict=False)
            self.losses = [_mean(pair) for pair in pairs]
            self._stride *= 2

    @property
    def remaining_s(self) -> float | None:
        """Seconds to go, at the pace of the last steps."""
        if not self.total_steps or self.step_s is None:
            return None
        return max(0, self.total_steps - self.step) * self.step_s

    @property
    def best_eval(self) -> tuple[int, float] | None:
        """Step and value of the lowest validation loss."""
        return min(self.evals, key=lambda point: point[1]) if self.evals else None

    @property
    def slowest(self) -> tuple[int, str, int, int] | None:
        """The rank that was most often the slowest: rank, host, in how many of how many steps; None for one rank."""
        if len(self.hosts_of_ranks) < 2 or not self._slowest:
            return None
        rank, count = Counter(self._slowest).most_common(1)[0]
        host = self.hosts_of_ranks[rank] if 0 <= rank < len(self.hosts_of_ranks) else "?"
        return rank, host, count, len(self._slowest)

    @property
    def slowest_stands_out(self) -> bool:
        """Whether that rank is slow by more than chance: in most steps, of enough of them."""
        found = self.slowest
        return found is not None and found[3] >= 10 and found[2] > 0.6 * found[3]


def _mean(points: Sequence[tuple[int, float]]) -> tuple[int, float]:
    return points[-1][0], sum(loss for _, loss in points) / len(points)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
