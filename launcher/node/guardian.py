"""The guardian: the small process that started the agent and ends what the agent leaves, however the agent ends.

It is the agent's parent and a child subreaper: when the agent is killed, everything that descended from it becomes the
guardian's own and is killed, by pid and start time. A file names what the agent has started, so that the next agent of
this user on this node can end orphans if agent and guardian were killed together.
"""

from __future__ import annotations

import os
import time

from . import plain_json, process_tree

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    import signal
    from typing import Any, Dict, List, Optional, Sequence, Set

    from .process_tree import ProcessId
else:
    import _signal as signal  # the same functions and numbers, but no enumerations made of all of them

RUN_VARIABLE = "DCU_LAUNCH_TOKEN"
#: the first look at what the agent has started, and the later ones: a scan of /proc is not free beside a training
FIRST_SCAN_S, SCAN_EVERY_S = 1.0, 5.0
#: the first look where nothing was announced: many agents may be answering on few CPUs
UNANNOUNCED_SCAN_S = 10.0
END_LIMIT_S = 25.0
#: from the agent: now it begins to start other programs
STARTING = signal.SIGUSR1


def start_agent_under_guard(token: str) -> int:
    """Fork; the caller goes on as the agent, and its parent stays as the guardian and exits with the agent's code.

    Call it before any thread exists.

    Args:
        token: names this run in the environment of everything that ranks start.

    Returns:
        The guardian's pid.
    """
    guardian = os.getpid()
    waited_for = {signal.SIGCHLD, STARTING}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    agent = os.fork()
    if agent == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited_for)
        process_tree.name_process("dcu-agent")
        return guardian
    code = 1
    try:
        _detach()
        code = _guard(agent, token)
    finally:
        os._exit(code)


def announce_start(guardian: int, token: str) -> None:
    """Called by the agent before it starts other programs: they are on record, and the guardian gets ready to inherit."""
    is_guarded = os.getppid() == guardian  # else it was killed, and its pid may be another's
    Record(os.getpid(), guardian if is_guarded else 0, token).write(set())
    if is_guarded:
        os.kill(guardian, STARTING)


def _detach() -> None:
    """Deaf to signals that are meant for the agent, and none of its descriptors: sshd waits for whoever holds them."""
    process_tree.name_process("dcu-guardian")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    process_tree.close_descriptors_but({0, 1, 2})


def _guard(agent: int, token: str) -> int:
    """Wait for the agent's end, end what it left, and return its exit code."""
    record = Record(agent, os.getpid(), token)
    known: Set[ProcessId] = set()
    wait_s = UNANNOUNCED_SCAN_S
    is_subreaper = False
    while True:
        found, status = os.waitpid(agent, os.WNOHANG)
        if found:
            break
        arrived = signal.sigtimedwait([signal.SIGCHLD, STARTING], wait_s)
        if not is_subreaper and not (arrived and arrived.si_signo == signal.SIGCHLD):
            # not earlier, since an agent that only answers shall cost as little as can be
            process_tree.become_subreaper()
            is_subreaper = True
            wait_s = FIRST_SCAN_S
        if arrived is None:
            wait_s = SCAN_EVERY_S
            seen = set(process_tree.descendants(agent))
            if seen != known:
                known = seen
                record.write(known)
    end_all(known, token, below=(os.getpid(),))
    record.remove()
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def end_all(known: Set[ProcessId], token: str, below: Sequence[int] = ()) -> List[ProcessId]:
    """Kill processes of a run until none is left: known ones, what bears its token, and what descends from either.

    Args:
        below: further processes whose descendants, not they themselves, are killed.

    Returns:
        Those that were killed.
    """
    killed: Set[ProcessId] = set()
    assignment = ("%s=%s" % (RUN_VARIABLE, token)).encode()
    deadline = time.monotonic() + END_LIMIT_S
    while time.monotonic() < deadline:
        found = {process for process in known if process_tree.start_time(process[0]) == process[1]}
        found.update(process_tree.having_variable(assignment))
        found.update(process_tree.descendants(*below, *(pid for pid, _ in found)))
        if not found:
            break
        killed |= found
        process_tree.kill_until_gone(found, within_s=0.5)
    return sorted(killed)


# ---- the record of what an agent has started


def record_folder() -> Optional[str]:
    """This user's private folder on this node for what agents have started; None when there is no safe one."""
    folder = os.path.join(_temporary_folder(), "dcu-launch-%d" % os.getuid())
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return None
    about = os.lstat(folder)
    return folder if about.st_uid == os.getuid() and (about.st_mode & 0o170077) == 0o040000 else None


def _temporary_folder() -> str:
    for folder in (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp"):  # noqa: S108  a private folder in it is ours
        if folder and os.path.isdir(folder) and os.access(folder, os.W_OK):
            return folder
    return "/tmp"  # noqa: S108


class Record:
    """The file that names an agent, its guardian and what they have started.

    The agent writes it first, before it starts anything; an agent that only answers leaves no file to make and to remove.
    """

    def __init__(self, agent: int, guardian: int, token: str) -> None:
        folder = record_folder()
        self._path = os.path.join(folder, "agent-%d.json" % agent) if folder else None
        self._fixed: Dict[str, Any] = {"place": _place(), "token": token}
        for name, pid in (("agent", agent), ("guardian", guardian)):
            self._fixed[name] = (pid, process_tree.start_time(pid) or 0)

    def write(self, known: Set[ProcessId]) -> None:
        """Note what runs now; a disk that does not take it is no reason to fail."""
        if self._path is None:
            return
        try:
            partial = "%s.%d.partial" % (self._path, os.getpid())
            with open(partial, "w") as file:
                file.write(plain_json.dumps(dict(self._fixed, known=sorted(known))))
            os.replace(partial, self._path)
        except OSError:
            pass

    def remove(self) -> None:
        """Nothing is left to be known."""
        if self._path is not None:
            _remove(self._path)


def end_orphans() -> List[int]:
    """End what agents of this user left on this node when both agent and guardian were killed; returns the pids."""
    folder = record_folder()
    ended: List[int] = []
    for name in sorted(os.listdir(folder)) if folder else ():
        path = os.path.join(folder or "", name)
        record = _read_record(path)
        if record is None or record["place"] != _place():
            continue
        keepers = [tuple(record["agent"]), tuple(record["guardian"])]
        if any(process_tree.start_time(pid) == started for pid, started in keepers):
            continue
        known = {(pid, started) for pid, started in record["known"]}
        ended += [pid for pid, _ in end_all(known, record["token"])]
        _remove(path)
    return ended


def _read_record(path: str) -> Optional[Dict[str, Any]]:
    try:
        with open(path) as file:
            record = plain_json.loads(file.read())
        return record if {"place", "agent", "guardian", "token", "known"} <= set(record) else None
    except (OSError, ValueError, TypeError):
        return None


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _place() -> List[str]:
    """This boot of this node, and this container of it: what pids and start times mean here alone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return [file.read().strip(), os.readlink("/proc/self/ns/pid")]
    except OSError:
        return ["", ""]
