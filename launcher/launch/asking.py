"""What another process asks of a run: lines of ``asked.jsonl`` in its folder, read by the head in a thread.

In: ``{"id", "want": "stop" | "save", "now", "by"}``, or an empty file SAVE or STOP beside it, for scripts and for hands.
Out: a stop goes where a signal to the head would go, so every wait sees it; a save is kept until the supervisor can pass
it on. No port, no socket: whoever may write into the run folder may ask, from any login node that sees it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from launcher.remote.session import Arrival, Inbox

ASKED_FILE = "asked.jsonl"
LOOK_EVERY_S = 0.5
#: a file of this name in the run folder asks, too; the head takes it away
ASKING_FILES = {"SAVE": "save", "STOP": "stop"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One thing asked of a run.

    Attributes:
        want: ``stop`` or ``save``.
        now: for a stop: kill the ranks at once.
        by: ``user@host``, to be told.
    """

    id: str
    want: str
    now: bool
    by: str


def ask(run_dir: Path, want: str, *, now: bool = False) -> str:
    """Ask something of the run; returns the id by which its events name what was asked.

    Raises:
        OSError: its file cannot be written.
    """
    identity = secrets.token_hex(8)
    line = {"id": identity, "want": want, "now": now, "by": f"{_user()}@{socket.gethostname()}"}
    # not made here: a file of the head's, which nobody else may have put there
    descriptor = os.open(run_dir / ASKED_FILE, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(descriptor, "ab", buffering=0) as file:
        file.write(json.dumps(line).encode("ascii") + b"\n")
    return identity


def _user() -> str:
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())


class Ear:
    """Hears what is asked of this run, from now on.

    Args:
        run_dir: gets a new, empty file for what is asked, for this user alone.
        inbox: where a stop goes.
    """

    def __init__(self, run_dir: Path, inbox: Inbox) -> None:
        self._path = run_dir / ASKED_FILE
        self._inbox = inbox
        self._saves: deque[Asked] = deque()
        self._read = 0
        self._run_dir = run_dir
        self._seen: set[str] = set()
        self._ended = threading.Event()
        try:
            for name in (ASKED_FILE, *ASKING_FILES):  # of an earlier run
                (run_dir / name).unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            os.close(os.open(self._path, flags, 0o600))
        except OSError:
            return  # a full or read-only disk: signals still work
        threading.Thread(target=self._listen, daemon=True, name="asked").start()

    def take_save(self) -> Asked | None:
        """The next save that is asked for."""
        return self._saves.popleft() if self._saves else None

    def end(self) -> None:
        """Hear nothing more; nothing more can be asked."""
        self._ended.set()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _listen(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            with contextlib.suppress(OSError):
                for asked in self._look():
                    self._obey(asked)
            for name in ASKING_FILES:
                self._look_for(name)

    def _look_for(self, name: str) -> None:
        path = self._run_dir / name
        if not path.exists():
            self._seen.discard(name)
        elif name not in self._seen:
            self._seen.add(name)  # one that cannot be taken away asks once
            self._obey(Asked(secrets.token_hex(8), ASKING_FILES[name], False, f"the file {name}"))
            with contextlib.suppress(OSError):
                path.unlink()

    def _look(self) -> list[Asked]:
        # opened anew each time: network disks look for what other machines wrote when a file is opened
        with open(self._path, "rb") as file:
            file.seek(self._read)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(newline)
        return [asked for asked in map(_parse, whole.split(b"\n")) if asked is not None]

    def _obey(self, asked: Asked) -> None:
        if asked.want == "save":
            self._saves.append(asked)
            return
        by = asked.by if asked.by.startswith("the file") else f"dcu-launch stop ({asked.by})"
        number = signal.SIGINT if asked.now else signal.SIGTERM
        for _ in range(2 if asked.now else 1):
            self._inbox.put(Arrival(-1, {"kind": "stop_asked", "by": by}, signal_number=number))


def _parse(line: bytes) -> Asked | None:
    try:
        data = json.loads(line)
        asked = Asked(str(data["id"]), str(data["want"]), bool(data.get("now")), str(data["by"])[:200])
    except (ValueError, KeyError, TypeError):
        return None
    return asked if asked.want in ("stop", "save") else None
