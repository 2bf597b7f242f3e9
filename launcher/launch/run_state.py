"""A run as its folder tells it: state, why, how far. Read by ``ps`` and its like, on any machine that sees the folder."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.base.regular_file import open_regular, read_text
from launcher.launch.life import (
    HEAD_FILE,
    HEAD_KEYS,
    LOCK_FILE,
    Head,
    is_alive,
    is_locked,
    last_sign,
    read_head,
)
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
            ``interrupted`` (it said how it ended); ``dead`` (it is gone without a word); ``damaged`` (the files that
            would say so cannot be read).
        why: for ``failed``, ``stopped``, ``interrupted``, ``dead`` and ``damaged``: one line or more.
        exit: exit code of the run; None while it goes on; 5 when dead or damaged.
        head: None where ``head.json`` is missing or damaged.
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
    damage = find_damage(path) if head is None or summary is None else ""
    if summary is None and head is None and not damage:
        return None
    row: dict[str, Any] = next(end_rows(path / "metrics.jsonl"), {})
    seen = RunState(path, "", "", None, head, row.get("step"), row.get("loss"), ranks=_count_ranks(path))
    if summary is None:
        if is_locked(path / LOCK_FILE) if head is None else is_alive(path, head):
            return replace(seen, state=_living_state(path), why=damage)
        summary = _read_summary(path)  # it may have ended between the two looks
        damage = "" if summary is not None else find_damage(path)
    if summary is not None:
        return _ended(seen, summary)
    if damage:
        return replace(seen, state="damaged", why=damage, exit=DEAD_EXIT, ended=_last_change(path))
    if head is None:
        return None
    return replace(seen, state="dead", why=_why_dead(path, head), exit=DEAD_EXIT, ended=last_sign(path, head))


def find_damage(path: Path) -> str:
    """What keeps the run of a folder from being told, and what that means; empty when nothing does."""
    damaged = [
        f"{name} {what}"
        for name, keys in ((HEAD_FILE, HEAD_KEYS), (SUMMARY_FILE, ("exit",)))
        if (what := _judge_file(path / name, keys))
    ]
    if not damaged and not any((path / name).exists() for name in (HEAD_FILE, SUMMARY_FILE)):
        if not all((path / name).exists() for name in ("events.jsonl", "plan.json")):
            return ""
        damaged = [f"{HEAD_FILE} and {SUMMARY_FILE} are missing"]
    return f"{' and '.join(damaged)}: nothing else says who leads it, or how it ended" if damaged else ""


def _judge_file(path: Path, keys: Sequence[str]) -> str:
    try:
        data = json.loads(text := read_text(path))
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (ValueError, RecursionError):
        return "is no JSON" if text.strip() else "is empty"
    whole = isinstance(data, dict) and all(key in data for key in keys)
    return "" if whole else "is not what a head writes"


def _last_change(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return None


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
    except (OSError, ValueError, RecursionError):
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
