"""Numbers -> places on a chart, and ticks at round numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.report.figures import format_number

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """Values from ``low`` to ``high`` onto pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def find_ticks(low: float, high: float, count: int, whole: bool = False) -> list[float]:
    """About ``count`` round numbers within the range, 1, 2 or 5 times a power of ten apart."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10 ** math.floor(math.log10(span / count))
    step = next(step * factor for factor in (1, 2, 5, 10) if span / (step * factor) <= count)
    if whole:
        step = max(1, round(step))
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def find_range(values: Sequence[float], from_zero: bool = False) -> tuple[float, float]:
    """The range to show: all values with some air, or from 0."""
    low, high = min(values), max(values)
    if from_zero:
        low = min(0.0, low)
    if high - low < 1e-9 * max(1.0, abs(high)):
        air = max(1e-9, 0.1 * abs(high)) if high else 0.5
        return (low if from_zero and low == 0 and high > 0 else low - air), high + air
    air = 0.05 * (high - low)
    return (low if from_zero else low - air), high + air


def thin_out(points: Points, limit: int) -> list[tuple[float, float]]:
    """At most about ``limit`` points: of each stretch the lowest and the highest, so that no spike is lost."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(2 * len(points) / limit)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        finite = [point for point in stretch if math.isfinite(point[1])]
        ends = {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])} if finite else {stretch[0]}
        kept += sorted(ends)
    return kept


def format_tick(value: float, step: float) -> str:
    """A tick with as many decimals as tell it from the next."""
    if abs(value) < step / 1e6:
        return "0"
    size = max(abs(value), step)
    if size < 1e-3 or size >= 1e7:
        return format_number(value, 2)
    if size >= 10_000:
        return f"{value / 1000:g}k"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    return f"{value:,.{decimals}f}"
