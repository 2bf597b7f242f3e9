"""Rows of figures -> metrics.jsonl and events. Only rank 0 writes; the head draws from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.train.channel import Channel, finite

if TYPE_CHECKING:
    from launcher.train.trackers import Trackers


class MetricsFile:
    """The run's metrics.jsonl: one JSON object a step.

    Args:
        path: of the file; None on ranks that write nothing.
        from_step: rows after this step are dropped: they belong to an attempt that ended after its last checkpoint.
        trackers: get the same figures.
    """

    def __init__(
        self, path: Path | None, channel: Channel, from_step: int, trackers: Trackers | None = None
    ) -> None:
        self._path, self._channel, self._trackers = path, channel, trackers
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            keep_rows(path, from_step)

    def write(self, step: int, row: dict[str, Any]) -> None:
        """Append the figures of a step and tell them to the agent."""
        if self._path is None:
            return
        data = {key: finite(value) if isinstance(value, float) else value for key, value in row.items()}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **data}, allow_nan=False) + "\n")
        self._channel.send("metric", data, step)
        if self._trackers is not None:
            self._trackers.log(step, data)

    def close(self, wait_s: float) -> None:
        """Let trackers finish, for so many seconds."""
        if self._trackers is not None:
            self._trackers.close(wait_s)


def keep_rows(path: Path, last_step: int) -> None:
    """Drop the rows of a file of JSON lines that are about later steps, or half written."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            if line and json.loads(line)["step"] <= last_step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):  # half a line, of a rank that was killed
            continue
    partial = path.with_name(path.name + ".partial")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, path)
