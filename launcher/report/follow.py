"""A run that somebody else leads, followed by its files: what its ranks say, its figures, its events. Runs anywhere.

In: the run folder, while it grows. Out: the same calls to a view that the head makes, so that both show alike.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from launcher.report.rank_logs import GrowingFile, RankLog
from launcher.report.terminal import TerminalView

#: a log that says nothing is looked at less and less often: a thousand of them lie on a network disk
LOOK_EVERY_S, LOOK_AT_MOST_S = 0.2, 3.0
#: pieces of one log shown in a row, before the others have their turn
PIECES = 16


class LogFollower:
    """Passes on what ranks write to their logs.

    Args:
        last_lines: begin so many lines before the present end of each log; None: at its beginning.
    """

    def __init__(self, logs: list[RankLog], last_lines: int | None) -> None:
        self._files = {log.rank: GrowingFile(log.path, last_lines) for log in logs}
        self._every = dict.fromkeys(self._files, LOOK_EVERY_S)
        self._next = dict.fromkeys(self._files, 0.0)

    def feed(self, view: TerminalView, now: float, *, everything: bool = False) -> bool:
        """Show what is new; whether there was anything.

        Args:
            everything: all logs, now, to their ends.
        """
        was_new = False
        for rank, file in self._files.items():
            if not everything and now < self._next[rank]:
                continue
            is_new = False
            for piece in _pieces(file, None if everything else PIECES):
                view.rank_output(rank, piece)
                is_new = was_new = True
            self._every[rank] = LOOK_EVERY_S if is_new else min(LOOK_AT_MOST_S, self._every[rank] * 1.3)
            self._next[rank] = now + self._every[rank]
        return was_new


def _pieces(file: GrowingFile, at_most: int | None) -> Iterator[bytes]:
    while (at_most is None or at_most > 0) and (data := file.read()):
        at_most = None if at_most is None else at_most - 1
        yield data


class RunFollower:
    """Passes on a run's metrics and events: the new ones; what was before is for those who ask for it.

    Args:
        run_dir: the run folder.
    """

    def __init__(self, run_dir: Path) -> None:
        self._metrics = GrowingFile(run_dir / "metrics.jsonl")
        self._events = GrowingFile(run_dir / "events.jsonl")

    def take_rows(self) -> list[dict[str, Any]]:
        """New rows of metrics; the first call gives all there are."""
        return list(_objects(self._metrics))

    def take_events(self) -> list[dict[str, Any]]:
        """New events; the first call gives all there are."""
        return list(_objects(self._events))


def _objects(file: GrowingFile) -> Iterator[dict[str, Any]]:
    for line in file.read_lines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def describe(event: Mapping[str, Any]) -> str:
    """An event in the words in which its head told it; empty for those that it keeps for itself."""
    data = event.get("data")
    data = data if isinstance(data, dict) else {}
    form = _TOLD.get(str(event.get("kind")))
    if form is None or data.get("refused") or data.get("status") in _NO_FAILURE:
        return ""
    return form.format_map(_Known({**event, **data}))


#: done, or ended because it was asked to or killed: what began it is in the words of the end
_NO_FAILURE = (0, 143, -15, -9)


class _Known(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return "?"


_TOLD = {
    "warning": "warning: {message}",
    "note": "{message}",
    "node_lost": "lost {host}: {why}; stopping the others",
    "stop": "{signal}: asking the ranks to end",
    "retry": "{why}, starting again",
    "checkpoint": "checkpoint: {path}",
    "request": "{want} asked by {by}",
    "rank_exit": "rank {rank} on {host} ended with {status}",
}
