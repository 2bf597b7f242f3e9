"""metrics.jsonl of a run folder -> rows, and series of one figure. Runs on the head."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base.regular_file import open_regular


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics.jsonl; a line cut off by a killed writer is passed over, no file means no rows."""
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError:
        return []
    rows = []
    for line in data.split(b"\n"):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def take_series(metrics: Sequence[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """(step, value) of one figure in order of steps; of a step done again after a resume, the later row counts.

    Values that are not finite stay, as NaN: a curve must show the gap.
    """
    found: dict[int, float] = {}
    for row in metrics:
        step, value = row.get("step"), row.get(key, _ABSENT)
        if not isinstance(step, int) or isinstance(step, bool) or value is _ABSENT:
            continue
        found[step] = to_float(value)
    return sorted(found.items())


def to_float(value: object) -> float:
    """A finite number as float; NaN for whatever else stands in a file."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:  # a whole number of 400 digits
        return math.nan


_ABSENT = object()
