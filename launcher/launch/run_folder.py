"""The run folder as the head writes it: what was asked, found and decided, events, and how it ended. Runs on the head."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.base.errors import UsageError
from launcher.base.events import Event
from launcher.launch.life import LOCK_FILE, Heartbeat

SUMMARY_FILE = "summary.json"
SEEN_FILE = ".seen-by-nodes"
#: somebody who looks whether this run lives holds the lock for a moment
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.05


class RunFolder:
    """Files of one run; every file is written whole or by appended lines.

    Once it is made, a disk that takes no more costs files, never ranks or their exit code.

    Args:
        path: the folder; made now, with its parents.

    Attributes:
        fault: the first file that could not be written, and why; empty while all were.

    Raises:
        UsageError: it cannot be made or written.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self.token = secrets.token_hex(16)
        self.fault = ""
        self._is_torn = False
        check_place(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / LOCK_FILE, "a")  # noqa: SIM115  held for the run
            self._take_lock()
            (path / SUMMARY_FILE).unlink(missing_ok=True)  # of an earlier run that this one goes on from
            (path / SEEN_FILE).write_text(self.token, encoding="ascii")
            self._events = open(path / "events.jsonl", "ab", buffering=0)  # noqa: SIM115  held for the run
            self._heartbeat = Heartbeat(path / LOCK_FILE)
        except OSError as error:
            raise UsageError(f"run folder {path}: {error.strerror}", "name another with --run-dir") from None

    def _take_lock(self) -> None:
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(LOCK_PAUSE_S)
            except OSError:
                return  # a disk without locks
        self._lock.close()
        raise UsageError(
            f"run folder {self.path}: another run is using it", "name another with --run-dir"
        ) from None

    @property
    def has_summary(self) -> bool:
        """Whether the end of this run is already told."""
        return (self.path / SUMMARY_FILE).exists()

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file in one step."""
        self.write_text(name, json.dumps(data, ensure_ascii=False, indent=2) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in one step."""
        aside = self.path / (name + ".partial")
        with self._noting(name):
            aside.write_text(text, encoding="utf-8", errors="surrogateescape")
            os.replace(aside, self.path / name)

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = self.fault or f"{name} is not whole: {error.strerror or error}"

    def add_event(
        self,
        kind: str,
        *,
        host: str = "",
        rank: int | None = None,
        step: int | None = None,
        attempt: int = 0,
        data: dict[str, Any] | None = None,
        at: float | None = None,
    ) -> None:
        """Append one event and let readers see it."""
        event = Event(kind, at or time.time(), self.run, attempt, host, rank, step, data or {})
        line = (event.to_json() + "\n").encode()
        with self._noting("events.jsonl"):
            # a disk that had no room for a whole line may have it now: what follows begins a line of its own
            start = b"\n" if self._is_torn else b""
            self._is_torn = True
            if self._events.write(start + line) < len(start + line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._is_torn = False

    def append(self, name: str, data: bytes) -> None:
        """Append bytes to a file: logs and metrics of nodes that do not see this folder."""
        path = self.path / name
        with self._noting(name):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "ab") as file:
                file.write(data)

    def close(self) -> None:
        """Take the token away and close the events."""
        with self._noting(SEEN_FILE):
            (self.path / SEEN_FILE).unlink(missing_ok=True)
        self._heartbeat.end()
        self._events.close()
        self._lock.close()


def name_run(target: str, name: str | None) -> str:
    """``<time>-<recipe>``: sorts by time, says what it was.

    Raises:
        UsageError: the name leads to another folder.
    """
    if name and ("/" in name or "\0" in name):
        raise UsageError(f"--name {name!r}: expected a name without /", "a whole path: --run-dir DIR")
    stem = name or Path(target).stem or "run"
    return time.strftime("%Y%m%d-%H%M%S-") + stem


def check_place(path: Path) -> None:
    """Refuse what cannot be a run's own folder; raises UsageError."""
    why = "is no place for a run" if path == path.parent else "is no folder"
    if path == path.parent or (path.exists() and not path.is_dir()):
        raise UsageError(f"run folder {path}: {why}", "name another with --run-dir")


def claim_folder(path: Path) -> Path:
    """Make a folder that was not there: the path itself, or with ``-2``, ``-3`` ... behind it, for runs of one second."""
    for number in range(1, 1000):
        wanted = path if number == 1 else path.with_name(f"{path.name}-{number}")
        try:
            wanted.mkdir(parents=True)
            return wanted
        except FileExistsError:
            continue
        except OSError as error:
            raise UsageError(
                f"run folder {wanted}: {error.strerror}", "name another with --run-dir"
            ) from None
    raise UsageError(f"run folder {path}: a thousand runs have that name", "name another with --run-dir")
