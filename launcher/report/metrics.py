"""metrics.jsonl of a run folder -> rows, and series of one figure. Runs on the head."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """All whole rows of a metrics.jsonl; a line cut off by a killed writer is passed over, no file means no rows."""
    try:
        data = Path(path).read_bytes()
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
        if not isinstance(step, int) or value is _ABSENT:
            continue
        is_number = isinstance(value, int | float) and math.isfinite(value)
        found[step] = float(value) if is_number else math.nan
    return sorted(found.items())


_ABSENT = object()
