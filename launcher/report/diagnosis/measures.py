"""Measures of a curve that several rules share: its start, its noise, how far it fell. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from launcher.base.learning_rate import USUAL_RATES
from launcher.report.figures import format_number
from launcher.report.run_record import RunRecord, number

#: losses that make the start of a curve: the learning rate still rises, little is learnt
START_STEPS = 3
#: of a normal distribution: the median step between neighbours by the standard deviation
_NEIGHBOURS = 0.954


def find_start(losses: Sequence[float]) -> float:
    """The mean of the first losses."""
    return statistics.fmean(losses[:START_STEPS])


def measure_noise(losses: Sequence[float]) -> float:
    """The standard deviation of a loss about the curve, from steps between neighbours: blind to the trend.

    The median keeps single spikes out of it.
    """
    if len(losses) < 3:
        return 0.0
    steps = [abs(after - before) for before, after in itertools.pairwise(losses)]
    return statistics.median(steps) / _NEIGHBOURS


def measure_fall(losses: Sequence[float]) -> tuple[float, float]:
    """(fall from the mean of the first quarter to that of the last, its standard error)."""
    quarter = max(1, len(losses) // 4)
    fall = statistics.fmean(losses[:quarter]) - statistics.fmean(losses[-quarter:])
    return fall, measure_noise(losses) * math.sqrt(2 / quarter)


def find_rate(record: RunRecord) -> float | None:
    """The highest learning rate of the run: as the ranks said, else as the rows show."""
    told = number(record.facts.get("learning_rate"))
    rates = record.values("lr")
    return told if told is not None else (max(rates) if rates else None)


def usual_rates(record: RunRecord) -> tuple[float, float]:
    """The usual range of the method's learning rate."""
    return USUAL_RATES.get(str(record.config.get("method")), USUAL_RATES["lora"])


def name_some(names: object, total: int) -> str:
    """Names in one line, and how many more there are."""
    listed = [str(name) for name in names] if isinstance(names, list) else []
    shown = ", ".join(listed[:6])
    return f"{shown}, ... ({total})" if total > len(listed[:6]) else shown


def written(**values: float | int | str | None) -> Mapping[str, str]:
    """Numbers as texts."""
    return {
        key: value if isinstance(value, str) else format_number(None if value is None else float(value), 3)
        for key, value in values.items()
    }
