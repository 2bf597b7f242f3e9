"""Processes of this node by pid and start time: who descends from whom, and how to end them. Runs in agent and guardian.

Nothing is ever looked for by name. A pid alone may be reused; a pid with its start time names one process for good.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    import signal
    from typing import Any, Callable, Collection, Dict, Iterable, List, Optional, Set, Tuple

    #: (pid, start time in clock ticks since boot)
    ProcessId = Tuple[int, int]
else:
    import _signal as signal  # the same functions and numbers, but no enumerations made of all of them

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


_libc: Any = None


def load_libc() -> None:
    """Load what talks to the kernel, which takes a while: before anything is forked, since a child must not import."""
    global _libc
    if _libc is None:
        import ctypes

        _libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    load_libc()
    _libc.prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children, instead of init's."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """What ``ps`` and ``top`` show; at most 15 letters. Called from the main thread."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def close_descriptors_but(keep: Collection[int]) -> None:
    """Close every open descriptor of this process that is not to be kept."""
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) not in keep:
            try:
                os.close(int(entry))
            except OSError:
                pass


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when the parent's thread that made it ends; end now if that has happened."""
    _prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:
        os._exit(137)


def start_time(pid: int) -> Optional[int]:
    """Start time of a process in clock ticks since boot; None when it is gone or only a zombie is left."""
    stat = _read_stat(pid)
    return None if stat is None or stat[0] in "ZX" else stat[2]


def _read_stat(pid: int) -> Optional[Tuple[str, int, int]]:
    """State, parent and start time; None when there is no such process."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (OSError, ValueError):
        return None
    return (fields[0].decode(), int(fields[1]), int(fields[19])) if len(fields) > 19 else None


def descendants(*roots: int, leave_out: Iterable[int] = ()) -> List[ProcessId]:
    """All living descendants of some processes, without those in ``leave_out`` and what descends from them."""
    children = _children_map()
    found: List[ProcessId] = []
    skip: Set[int] = set(leave_out)
    stack = list(roots)
    while stack:
        for pid, started, state in children.get(stack.pop(), ()):
            if pid in skip:
                continue
            stack.append(pid)
            if state not in "ZX":
                found.append((pid, started))
    return found


def _children_map() -> Dict[int, List[Tuple[int, int, str]]]:
    children: Dict[int, List[Tuple[int, int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            stat = _read_stat(int(entry))
            if stat is not None:
                children.setdefault(stat[1], []).append((int(entry), stat[2], stat[0]))
    return children


def having_variable(assignment: bytes) -> List[ProcessId]:
    """Living processes of this user whose environment holds ``NAME=value`` exactly."""
    found: List[ProcessId] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % entry, "rb") as file:
                held = assignment in file.read().split(b"\0")
        except OSError:
            continue
        started = start_time(int(entry)) if held else None
        if started is not None:
            found.append((int(entry), started))
    return found


def send_signal(process: ProcessId, number: int) -> bool:
    """Signal a process if it still is the one meant; True when it was there."""
    if start_time(process[0]) != process[1]:
        return False
    try:
        os.kill(process[0], number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_until_gone(processes: Iterable[ProcessId], within_s: float = 5.0) -> List[ProcessId]:
    """KILL processes and wait for their end; returns those that are still there (uninterruptible sleep)."""
    left = list(processes)
    deadline = time.monotonic() + within_s
    while left:
        left = [process for process in left if send_signal(process, signal.SIGKILL)]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left


def end_what_is_listed(list_left: Callable[[], List[ProcessId]], by_itself_s: float) -> List[int]:
    """Kill processes until none is listed any more; returns the pids that not even KILL ended.

    Args:
        by_itself_s: so long they may end by themselves.
    """
    deadline = time.monotonic() + by_itself_s
    left = list_left()
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = list_left()
    for _ in range(20):  # what is killed may have had children that only now become ours
        stubborn = kill_until_gone(left, within_s=2.0)
        left = list_left()
        if stubborn or not left:
            return [pid for pid, _ in stubborn]
    return [pid for pid, _ in left]
