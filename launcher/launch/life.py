"""Whether a run's head lives: ``head.json`` says who it is, a lock and a heartbeat say that it goes on.

Written by the head, read by ``ps`` and its like on any machine that sees the run folder. On the head's own machine the
kernel's word on the lock decides; from elsewhere a lock that is held is proof of life, and since not every disk shares
its locks, a fresh heartbeat (the time stamp of the lock file, by the disk's own clock) is one too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path

from launcher.base.regular_file import read_text

HEAD_FILE = "head.json"
LOCK_FILE = ".lock"
HEARTBEAT_S = 5.0
#: network disks may show a time stamp late, by as much as a minute
STALE_S = 90.0


@dataclass(frozen=True, slots=True)
class Head:
    """The process that leads a run.

    Attributes:
        boot: the boot of its machine, as the kernel names it; empty when not known.
        ticks: when the process started, in the kernel's ticks: with the pid it names one process.
        started: seconds since the epoch.
        kind: ``recipe``, ``script`` or ``module``.
        steps: optimizer steps of a recipe, where its file says so.
    """

    run: str
    run_dir: str
    host: str
    pid: int
    ticks: int
    boot: str
    started: float
    target: str
    kind: str
    hosts: tuple[str, ...]
    detached: bool = False
    steps: int | None = None

    def to_json(self) -> str:
        """The text of ``head.json``."""
        return json.dumps({"version": 1, **asdict(self)}, ensure_ascii=False, indent=2) + "\n"


#: what every head writes of itself
HEAD_KEYS = tuple(field.name for field in fields(Head) if field.default is MISSING)


def this_head(
    run: str,
    run_dir: Path,
    *,
    target: str,
    kind: str,
    hosts: tuple[str, ...],
    detached: bool,
    steps: int | None,
) -> Head:
    """This process as the head of a run."""
    pid = os.getpid()
    return Head(
        run, str(run_dir), socket.gethostname(), pid, _start_ticks(pid) or 0, boot_id(), time.time(), target, kind,
        hosts, detached, steps,
    )  # fmt: skip


def read_head(run_dir: Path) -> Head | None:
    """Who leads or led the run of this folder; None when nothing readable says so."""
    try:
        data = json.loads(read_text(run_dir / HEAD_FILE))
        known = {field.name: data[field.name] for field in fields(Head) if field.name in data}
        return Head(**{**known, "hosts": tuple(known["hosts"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def boot_id() -> str:
    """This boot of this machine, as the kernel names it."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _start_ticks(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    return int(stat.rpartition(b")")[2].split()[19])


def is_alive(run_dir: Path, head: Head) -> bool:
    """Whether the head of this folder's run goes on."""
    held = is_locked(run_dir / LOCK_FILE)
    if held:
        return True
    if head.boot and head.boot == boot_id():
        if held is None:  # a disk without locks
            return head.host == socket.gethostname() and _start_ticks(head.pid) == head.ticks
        return False
    return _disk_time(run_dir) - last_sign(run_dir, head) < STALE_S


def last_sign(run_dir: Path, head: Head) -> float:
    """When the head was heard of last, in seconds since the epoch by the disk's clock."""
    try:
        return os.stat(run_dir / LOCK_FILE).st_mtime
    except OSError:
        return head.started


def is_locked(path: Path) -> bool | None:
    """Whether somebody holds the lock; None when the disk cannot say."""
    try:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except FileNotFoundError:
        return False
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK,) else None


def _disk_time(folder: Path) -> float:
    """Now, by the clock that stamps the files of this folder: it may be another machine's."""
    path = folder / f".now-{secrets.token_hex(8)}"
    try:
        path.touch(exist_ok=False)
        try:
            return path.stat().st_mtime
        finally:
            path.unlink()
    except OSError:
        return time.time()


class Heartbeat:
    """Stamps the lock file every ``HEARTBEAT_S`` seconds, in a thread: a disk that hangs must not keep the head waiting."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="heartbeat").start()

    def _beat(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                os.utime(self._path)
            if self._ended.wait(HEARTBEAT_S):
                return

    def end(self) -> None:
        """Stamp no more."""
        self._ended.set()
