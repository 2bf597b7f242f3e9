"""The guardian: a small process beside the agent that ends what the agent leaves when the agent itself is killed.

It holds one end of a pipe. End of file without the farewell byte means that the agent died: everything that descended
from it is killed, by pid and start time. What it knows is also written to a file, so that the next agent of this user
on this node can end orphans if agent and guardian were killed together.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
from typing import Any, Dict, List, Optional, Set, Tuple

from . import process_tree
from .process_tree import ProcessId

FAREWELL = b"q"
RUN_VARIABLE = "DCU_LAUNCH_TOKEN"
SCAN_EVERY_S = 1.0


def start_guardian(token: str) -> Tuple[int, int]:
    """Fork the guardian of the calling agent; call it before any thread exists.

    Returns:
        The guardian's pid and the descriptor to write ``FAREWELL`` to at the agent's orderly end.
    """
    reading, writing = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(reading)
        return pid, writing
    status = 1
    try:
        os.close(writing)
        _detach(keep=reading)
        _guard(agent, process_tree.start_time(agent) or 0, token, reading)
        status = 0
    finally:
        os._exit(status)
    raise AssertionError("unreachable")


def _detach(keep: int) -> None:
    """Own session, no signals, and none of the agent's descriptors: sshd waits for whoever holds them."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for entry in os.listdir("/proc/self/fd"):
        if int(entry) > 2 and int(entry) != keep:
            try:
                os.close(int(entry))
            except OSError:
                pass


def _guard(agent: int, agent_started: int, token: str, reading: int) -> None:
    known: Set[ProcessId] = set()
    record = _record_path(agent)
    while True:
        ready, _, _ = select.select([reading], [], [], SCAN_EVERY_S)
        if ready:
            word = os.read(reading, 1)
            if word == FAREWELL:
                break
            if word == b"":
                known.update(process_tree.having_variable(("%s=%s" % (RUN_VARIABLE, token)).encode()))
                _end_all(known)
                break
        fresh = set(process_tree.descendants(agent, leave_out=(os.getpid(),)))
        if fresh - known:
            known |= fresh
            _write_record(record, agent, agent_started, known)
        known = {process for process in known if process_tree.start_time(process[0]) == process[1]}
    if record:
        _remove(record)


def _end_all(known: Set[ProcessId]) -> None:
    for _ in range(50):
        below = [found for pid, _ in known for found in process_tree.descendants(pid)]
        known.update(below)
        if not process_tree.kill_until_gone(known, within_s=0.5):
            return


def record_folder() -> Optional[str]:
    """This user's private folder on this node for what agents have started; None when there is no safe one."""
    folder = os.path.join(tempfile.gettempdir(), "dcu-launch-%d" % os.getuid())
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    about = os.lstat(folder)
    return folder if about.st_uid == os.getuid() and (about.st_mode & 0o170077) == 0o040000 else None


def _record_path(agent: int) -> Optional[str]:
    folder = record_folder()
    return os.path.join(folder, "agent-%d.json" % agent) if folder else None


def _write_record(path: Optional[str], agent: int, started: int, known: Set[ProcessId]) -> None:
    if path is None:
        return
    record = {"boot": _boot_id(), "agent": [agent, started], "guardian": _self_id(), "known": sorted(known)}
    try:
        with open(path + ".partial", "w") as file:
            json.dump(record, file)
        os.replace(path + ".partial", path)
    except OSError:
        pass


def end_orphans() -> List[int]:
    """End what agents of this user left on this node when both agent and guardian were killed; returns the pids."""
    folder = record_folder()
    ended: List[int] = []
    for name in sorted(os.listdir(folder)) if folder else ():
        path = os.path.join(folder or "", name)
        record = _read_record(path)
        if record is None or record["boot"] != _boot_id():
            continue
        keepers = [tuple(record["agent"]), tuple(record["guardian"])]
        if any(process_tree.start_time(pid) == started for pid, started in keepers):
            continue
        orphans = {
            (pid, started) for pid, started in record["known"] if process_tree.start_time(pid) == started
        }
        ended += sorted(pid for pid, _ in orphans)
        _end_all(orphans)
        _remove(path)
    return ended


def _read_record(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path) as file:
            record = json.load(file)
        return record if {"boot", "agent", "guardian", "known"} <= set(record) else None
    except (OSError, ValueError, TypeError):
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _self_id() -> ProcessId:
    return os.getpid(), process_tree.start_time(os.getpid()) or 0


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""
