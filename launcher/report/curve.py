"""Losses -> a small chart of characters for the terminal. Runs on the head; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.report.metrics import take_series

#: dots of a braille character, by row and column
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_BRAILLE = 0x2800


@dataclass(frozen=True, slots=True)
class _Look:
    """The characters a chart is made of and how many dots each holds."""

    columns: int
    rows: int
    axis: str
    corner: str
    floor: str
    evaluated: str


_FINE = _Look(2, 4, "\u2524", "\u2514", "\u2500", "\u25cf")
_ASCII = _Look(1, 1, "|", "+", "-", "o")


def draw_curve(
    losses: Sequence[float],
    width: int = 72,
    height: int = 12,
    eval_losses: Sequence[tuple[int, float]] = (),
    *,
    first_step: int = 1,
    encoding: str = "utf-8",
) -> str:
    """A chart of the loss of each step, ``width`` x ``height`` characters at most; empty without a finite loss.

    Args:
        losses: one a step; values that are not finite leave a gap.
        eval_losses: (step, loss), drawn as points.
        first_step: step of the first loss.
        encoding: of the stream that will show it; what it cannot say is drawn in ASCII.
    """
    return _draw(list(enumerate(losses, first_step)), eval_losses, width, height, encoding)


def draw_metrics(
    metrics: Sequence[Mapping[str, Any]], width: int = 72, height: int = 12, encoding: str = "utf-8"
) -> str:
    """The chart of rows of metrics.jsonl; empty for fewer than two finite losses."""
    losses = take_series(metrics, "loss")
    if sum(math.isfinite(loss) for _, loss in losses) < 2:
        return ""
    return _draw(losses, take_series(metrics, "eval_loss"), width, height, encoding)


def draw_points(
    losses: Sequence[tuple[int, float]],
    eval_losses: Sequence[tuple[int, float]],
    width: int = 72,
    height: int = 12,
    encoding: str = "utf-8",
) -> str:
    """The chart of (step, loss), and of (step, eval loss) as marks; empty without a finite loss."""
    return _draw(losses, eval_losses, width, height, encoding)


def _draw(
    losses: Sequence[tuple[int, float]],
    eval_losses: Sequence[tuple[int, float]],
    width: int,
    height: int,
    encoding: str,
) -> str:
    marks = [(step, loss) for step, loss in eval_losses if math.isfinite(loss)]
    finite = [loss for _, loss in losses if math.isfinite(loss)]
    if not finite:
        return ""
    look = _FINE if can_encode(encoding) else _ASCII
    low, high = _find_range([*finite, *(loss for _, loss in marks)])
    labels = _label_rows(low, high, height - 2)
    margin = max(map(len, labels))
    columns = max(8, width - margin - 2)
    steps = [step for step, _ in (*losses, *marks)]
    place = _Scale(min(steps), max(steps), columns * look.columns)
    chart = _Chart(columns, height - 2, low, high, look)
    for x, loss in _thin_out(losses, place):
        chart.line_to(x, loss)
    for step, loss in marks:
        chart.mark(place.of(step), loss)
    rows = [f"{label:>{margin}} {look.axis}{row}" for label, row in zip(labels, chart.rows(), strict=True)]
    left, right = f"step {place.first}", str(place.last)
    key = f"loss, {look.evaluated} eval_loss" if marks else "loss"
    room = max(1, columns - len(left) - len(right))
    axis = f"{left}{key if len(key) + 2 <= room else '':^{room}}{right}"
    floor = " " * (margin + 1) + look.corner + look.floor * columns
    return "\n".join([*(row.rstrip() for row in rows), floor, " " * (margin + 2) + axis])


@dataclass(frozen=True, slots=True)
class _Scale:
    """Steps to columns of dots."""

    first: int
    last: int
    dots: int

    def of(self, step: int) -> int:
        """The column of a step."""
        return round((step - self.first) / max(1, self.last - self.first) * (self.dots - 1))


class _Chart:
    """A grid of dots, filled by a line that goes from point to point."""

    def __init__(self, columns: int, height: int, low: float, high: float, look: _Look) -> None:
        self._look = look
        self._low, self._span = low, high - low
        self._dot_rows = height * look.rows
        self._cells = [[0] * columns for _ in range(height)]
        self._marks: dict[tuple[int, int], str] = {}
        self._last: tuple[int, int] | None = None

    def line_to(self, x: int, value: float) -> None:
        """Go on to a point; a value that is not finite lifts the pen."""
        if not math.isfinite(value):
            self._last = None
            return
        point = (x, self._find_row(value))
        for column, row in _points_between(self._last or point, point):
            cell = self._cells[row // self._look.rows]
            cell[column // self._look.columns] |= _DOTS[row % self._look.rows][column % self._look.columns]
        self._last = point

    def mark(self, x: int, value: float) -> None:
        """Put a mark at a point, above the line."""
        key = (self._find_row(value) // self._look.rows, x // self._look.columns)
        self._marks[key] = self._look.evaluated

    def rows(self) -> Iterator[str]:
        """The lines of text, from the top."""
        for number, cells in enumerate(self._cells):
            yield "".join(
                self._marks.get((number, column)) or self._character(dots)
                for column, dots in enumerate(cells)
            )

    def _character(self, dots: int) -> str:
        if not dots:
            return " "
        return "*" if self._look is _ASCII else chr(_BRAILLE + dots)

    def _find_row(self, value: float) -> int:
        return round((1 - (value - self._low) / self._span) * (self._dot_rows - 1))


def _points_between(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for step in range(steps + 1):
        share = step / steps
        yield round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1]))


def _thin_out(losses: Sequence[tuple[int, float]], place: _Scale) -> Iterator[tuple[int, float]]:
    """One point a column of dots: the mean of the steps that fall into it."""
    columns: dict[int, list[float]] = {}
    for step, loss in losses:
        columns.setdefault(place.of(step), []).append(loss)
    for x, values in columns.items():
        finite = [value for value in values if math.isfinite(value)]
        yield x, sum(finite) / len(finite) if finite else math.nan


def _find_range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        margin = max(0.5, 0.01 * abs(high))
        return low - margin, high + margin
    return low, high


def _label_rows(low: float, high: float, height: int) -> list[str]:
    """A number for the top, the bottom and each third row between, with as many digits as tell them apart."""
    digits = max(1, min(6, 2 - math.floor(math.log10(high - low))))
    form = f".{digits}f" if max(abs(low), abs(high)) < 1e6 else ".3g"
    every = 3
    return [
        f"{high - (high - low) * row / max(1, height - 1):{form}}"
        if row % every == 0 or row == height - 1
        else ""
        for row in range(height)
    ]


def can_encode(encoding: str) -> bool:
    """Whether a stream of this encoding can say braille and lines."""
    try:
        (chr(_BRAILLE + 1) + "\u2524\u2514\u2500\u25cf").encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
