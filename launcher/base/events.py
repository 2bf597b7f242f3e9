"""Event: one thing that happened, as one JSON object a line in ``events.jsonl``. Made by ranks, agents and the head."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

EVENT_VERSION = 1

#: every kind an event may have; a test holds writers to this list
EVENT_KINDS = frozenset(
    {
        "start",
        "node_ready",
        "rank_started",
        "rank_ready",
        "rank_exit",
        "node_lost",
        "stop",
        "end",
        "note",
        "warning",
        "metric",
        "sample",
        "checkpoint",
        "result",
        "retry",
        "request",
    }
)


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    Attributes:
        time: seconds since the epoch, by the clock of who made it.
        rank: global rank, or None for agents and the head.
        step: optimizer step (1 is the first), or None.
    """

    kind: str
    time: float
    run: str = ""
    attempt: int = 0
    host: str = ""
    rank: int | None = None
    step: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    version: int = EVENT_VERSION

    def to_json(self) -> str:
        """One line without the newline; keys in a fixed order, None left out."""
        fields = {k: v for k, v in dataclasses.asdict(self).items() if v is not None}
        try:
            return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except ValueError:  # JSON has no NaN and no infinity; a diverged loss must not end the record of it
            return json.dumps(_spell_out(fields), ensure_ascii=False, separators=(",", ":"))


def _spell_out(value: Any) -> Any:
    """NaN and infinities as texts, wherever they stand."""
    if isinstance(value, dict):
        return {key: _spell_out(held) for key, held in value.items()}
    if isinstance(value, list):
        return [_spell_out(held) for held in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
