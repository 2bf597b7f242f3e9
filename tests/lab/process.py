"""The processes of one lab host, read from this machine's /proc by the host's pid namespace."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process of a host; equal only to itself, since a pid comes with its start time.

    Attributes:
        pid: as the host sees it.
        outer_pid: as this machine sees it: what ``os.kill`` takes.
        start: clock ticks from the machine's boot to its start.
        cmdline: its words joined by blanks; a zombie's is empty, and sshd rewrites its own.
    """

    pid: int
    outer_pid: int
    start: int
    cmdline: str = field(compare=False)

    def is_alive(self) -> bool:
        """Whether it still runs: not another one of the same pid, and no zombie."""
        found = _read(self.outer_pid)
        return found is not None and found.start == self.start and bool(found.cmdline)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal, unless it is gone."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.outer_pid, number)


def list_processes(init_pid: int) -> list[HostProcess]:
    """All processes in the pid namespace of this process, itself included, by pid."""
    namespace = _namespace(init_pid)
    if namespace is None:
        return []
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    found = [_read(pid) for pid in pids if _namespace(pid) == namespace]
    return sorted((process for process in found if process), key=lambda process: process.pid)


def list_children(pid: int) -> list[int]:
    """The pids of its children; none when it is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_listening(init_pid: int, port: int) -> bool:
    """Whether something listens on this TCP port in the network namespace of this process."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{init_pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        if any(
            int(line.split()[1].rpartition(":")[2], 16) == port and line.split()[3] == "0A" for line in lines
        ):
            return True
    return False


def _namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


def _read(pid: int) -> HostProcess | None:
    folder = Path(f"/proc/{pid}")
    try:
        start = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
        words = (folder / "cmdline").read_bytes().decode(errors="replace")
        status = (folder / "status").read_text()
    except OSError:
        return None
    inner = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1]
    return HostProcess(int(inner), pid, start, words.replace("\0", " ").strip())
