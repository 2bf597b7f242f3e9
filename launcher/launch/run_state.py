"""A run as its folder tells it: state, why, how far. Read by ``ps`` and its like, on any machine that sees the folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.base.regular_file import open_regular, read_text
from launcher.launch.life import Head, is_alive, last_sign, read_head
from launcher.launch.run_folder import SUMMARY_FILE

#: of a long file only the end is read
END_BYTES = 256 * 1024
#: nobody is there to say how it ended: as when the head is lost
DEAD_EXIT = 5
#: what these events say of a run whose head lives; the last one counts
STATES = {"start": "starting", "rank_started": "running", "stop": "stopping", "node_lost": "stopping"}


@dataclass(frozen=True, slots=True)
class RunState:
    """One run at one moment.

    Attributes:
        state: ``starting``, ``running``, ``stopping`` (the head lives); ``done``, ``failed``, ``stopped``,
            ``interrupted`` (it said how it ended); ``dead`` (it is gone without a word).
        why: for ``failed``, ``stopped``, ``interrupted`` and ``dead``: one line or more.
        exit: exit code of the run; None while it goes on; 5 when dead.
        head: None for folders that an older version wrote.
        step, loss: of the last row of metrics.
        ranks: how many, once there is a plan.
    """

    path: Path
    state: str
    why: str
    exit: int | None
    head: Head | None
    step: int | None = None
    loss: float | None = None
    ended: float | None = None
    ranks: int | None = None

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def is_alive(self) -> bool:
        """Whether the run goes on."""
        return self.exit is None


def read_run(path: Path) -> RunState | None:
    """The run of a folder; None when it is no run folder, or cannot be seen from here."""
    summary, head = _read_summary(path), read_head(path)
    if summary is None and head is None:
        return None
    row: dict[str, Any] = next(end_rows(path / "metrics.jsonl"), {})
    seen = RunState(path, "", "", None, head, row.get("step"), row.get("loss"), ranks=_count_ranks(path))
    if head is not None and summary is None:
        if is_alive(path, head):
            return replace(seen, state=_living_state(path))
        summary = _read_summary(path)  # it may have ended between the two looks
        if summary is None:
            return replace(
                seen, state="dead", why=_why_dead(path, head), exit=DEAD_EXIT, ended=last_sign(path, head)
            )
    return _ended(seen, summary or {})


def _ended(seen: RunState, summary: Mapping[str, Any]) -> RunState:
    kind, code = str(summary.get("kind", "")), summary.get("exit")
    with contextlib.suppress(OSError):
        seen = replace(seen, ended=(seen.path / SUMMARY_FILE).stat().st_mtime)
    return replace(
        seen,
        state="done" if code == 0 else kind if kind in ("stopped", "interrupted") else "failed",
        why=str(summary.get("message") or ""),
        exit=code if isinstance(code, int) else 1,
    )


def _count_ranks(path: Path) -> int | None:
    size = (_read_json(path / "plan.json") or {}).get("world_size")
    return size if isinstance(size, int) else None


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(read_text(path))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _read_summary(path: Path) -> dict[str, Any] | None:
    return _read_json(path / SUMMARY_FILE)


def _living_state(path: Path) -> str:
    for event in end_rows(path / "events.jsonl"):
        if event.get("kind") in STATES:
            return STATES[event["kind"]]
    return "running"  # so many other events since


def _why_dead(path: Path, head: Head) -> str:
    last = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last_sign(path, head)))
    return (
        f"its head, process {head.pid} on {head.host}, is gone without a word; last sign of life {last}; "
        "the nodes ended its ranks by themselves"
    )


def end_rows(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects from the end of a file of lines, the last one first; only whole lines of its last part."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - END_BYTES))
            data = file.read(END_BYTES)
    except OSError:
        return
    for line in reversed(data.split(b"\n")):
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row
