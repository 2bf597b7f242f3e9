"""Which ranks have come to the rendezvous, seen from outside: those that hold a connection to the master's port.

Any script that calls ``init_process_group`` connects to the store there and stays connected, so nothing has to be
changed in it to say which rank the others are waiting for. Runs in the agent.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Iterable, Set

EVERY_S, EVERY_AT_MOST_S = 0.5, 5.0
_ESTABLISHED = "01"


class JoinedRanks:
    """Who of one order's ranks has come so far; looks at times, less often the longer it takes."""

    def __init__(self) -> None:
        self._found: Set[int] = set()
        self._look_at = 0.0
        self._every_s = EVERY_S

    def look(self, pids: Dict[int, int], order: Dict[str, Any], now: float) -> Set[int]:
        """Ranks that have come since the last look; empty too when none is due.

        Args:
            pids: of the living ranks.
            order: with ``MASTER_PORT`` among its variables.
            now: seconds of the monotonic clock.
        """
        missing = {rank: pid for rank, pid in pids.items() if rank not in self._found}
        if not missing or now < self._look_at:
            return set()
        self._look_at = now + self._every_s
        self._every_s = min(self._every_s * 1.1, EVERY_AT_MOST_S)
        fresh = joined_ranks(missing, int(order["variables"]["MASTER_PORT"]))
        self._found |= fresh
        return fresh


def joined_ranks(pids: Dict[int, int], port: int) -> Set[int]:
    """Ranks (by pid) with an established TCP connection to ``port`` of whatever address (proc(5), /proc/pid/net/tcp)."""
    found = set()
    connected: Dict[
        str, Set[str]
    ] = {}  # by network namespace: nearly always one for all ranks, and dear to read
    for rank, pid in pids.items():
        namespace = _network_of(pid)
        if namespace not in connected:
            connected[namespace] = _connected_inodes(pid, port)
        if connected[namespace] and connected[namespace] & _held_inodes(pid):
            found.add(rank)
    return found


def _network_of(pid: int) -> str:
    try:
        return os.readlink("/proc/%d/ns/net" % pid)
    except OSError:
        return "rank of pid %d" % pid


def _connected_inodes(pid: int, port: int) -> Set[str]:
    inodes = set()
    wanted = "%04X" % port
    for table in ("tcp", "tcp6"):
        for fields in _rows("/proc/%d/net/%s" % (pid, table)):
            if len(fields) > 9 and fields[3] == _ESTABLISHED and fields[2].rpartition(":")[2] == wanted:
                inodes.add(fields[9])
    return inodes


def _rows(path: str) -> Iterable[list]:  # type: ignore[type-arg]  # Python 3.8 has no list[str]
    try:
        with open(path) as file:
            return [line.split() for line in file.read().split("\n")[1:]]
    except OSError:
        return []


def _held_inodes(pid: int) -> Set[str]:
    held: Set[str] = set()
    folder = "/proc/%d/fd" % pid
    try:
        entries = os.listdir(folder)
    except OSError:
        return held
    for entry in entries:
        try:
            target = os.readlink(os.path.join(folder, entry))
        except OSError:
            continue
        if target.startswith("socket:["):
            held.add(target[8:-1])
    return held
