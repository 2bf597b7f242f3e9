"""The rank processes of one node: start them, read what they say, end them. Runs in the agent's main thread.

Each rank gets a session of its own, /dev/null as stdin, one pipe for stdout and stderr together, and, for recipes, a
socket pair (``DCU_LAUNCH_CHANNEL``) over which it reports events and hears ``go``, ``save`` and ``stop``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from . import process_tree
from .guardian import RUN_VARIABLE
from .numa import Binding
from .output import Tail

#: stands in a recipe's argv for the folder that holds our code
CODE_FOLDER = "@launcher@"
CHANNEL_VARIABLE = "DCU_LAUNCH_CHANNEL"
#: the silence after which a rank that has printed a traceback is told to stay behind
STAYS_AFTER_S = 10.0
READ_BYTES = 64 * 1024


@dataclass
class RankProcess:
    """One rank on this node.

    Attributes:
        pipe: reading end of its output; -1 once at end of file.
        status: None while it runs, else exit code, or minus the signal number.
        heard: when it last said something, by the monotonic clock.
        is_told: that it stays behind after its error has been told.
    """

    rank: int
    local_rank: int
    pid: int
    started: int
    pipe: int
    channel: Optional[socket.socket]
    log_path: str
    tail: Tail = field(default_factory=Tail)
    status: Optional[int] = None
    channel_buffer: bytes = b""
    heard: float = 0.0
    is_told: bool = False

    @property
    def process_id(self) -> process_tree.ProcessId:
        """Pid and start time."""
        return self.pid, self.started

    def read_output(self) -> bytes:
        """What is in the pipe now, up to ``READ_BYTES``; empty when nothing is; closes the pipe at its end."""
        if self.pipe < 0:
            return b""
        try:
            data = os.read(self.pipe, READ_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            os.close(self.pipe)
            self.pipe = -1
        else:
            self.heard = time.monotonic()
        self.tail.add(data)
        return data

    def stays_after_error(self, now: float) -> bool:
        """True once, when nothing came for ``STAYS_AFTER_S`` after the traceback of an error and it still runs."""
        is_quiet = self.status is None and 0 < self.heard < now - STAYS_AFTER_S
        if self.is_told or not is_quiet or not self.tail.ends_in_error:
            return False
        self.is_told = True
        return True

    def read_channel(self) -> Optional[List[Dict[str, Any]]]:
        """Messages that have arrived from the rank; None at the end of its channel."""
        if self.channel is None:
            return None
        try:
            data = self.channel.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        *lines, self.channel_buffer = (self.channel_buffer + data).split(b"\n")
        return [message for message in map(_parse_line, lines) if message is not None]

    def tell(self, message: Dict[str, Any]) -> None:
        """Send one message to the rank; a rank that is gone or does not read misses it."""
        if self.channel is not None:
            try:
                self.channel.settimeout(5.0)
                self.channel.sendall(json.dumps(message).encode("ascii") + b"\n")
            except OSError:
                pass
            finally:
                self.channel.setblocking(False)

    def is_ours(self) -> bool:
        """Whether it is a child of this process, running or ended, so that its end will be told here."""
        try:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True

    def signal(self, number: int) -> bool:
        """Signal the rank's own process only; True when it was there."""
        return self.status is None and process_tree.send_signal(self.process_id, number)


def _parse_line(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        message = json.loads(line.decode("utf-8"))
    except ValueError:
        return None
    return message if isinstance(message, dict) and "kind" in message else None


def spawn_rank(
    order: Dict[str, Any], which: Dict[str, Any], variables: Dict[str, str], home: str
) -> RankProcess:
    """Start one rank as a process of its own.

    Args:
        order: the node's order: ``argv``, ``variables``, ``defaults``, ``unset``, ``workdir``, ``log_dir``, ``recipe`` (None
            for scripts), and the agent's ``token``.
        which: ``rank``, ``local_rank``, ``variables``, ``arguments``, ``defaults`` and ``binding`` of this rank alone.
        variables: the node's environment as ``environment.make_environment`` left it.
        home: the folder that holds our code, for recipes.

    Raises:
        OSError: the program cannot be started.
    """
    argv = [home if word == CODE_FOLDER and order.get("recipe") else word for word in order["argv"]]
    environment = rank_environment(order, which, variables)
    ours, theirs = socket.socketpair() if order.get("recipe") else (None, None)
    reading, writing = os.pipe()
    keep = []
    if theirs is not None:
        environment[CHANNEL_VARIABLE] = str(theirs.fileno())
        keep.append(theirs.fileno())
    agent = os.getpid()
    binding = Binding(which.get("binding"))
    try:
        process = subprocess.Popen(
            [os.fsencode(word) for word in argv + which.get("arguments", [])],
            env=environment,
            cwd=order["workdir"],
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            pass_fds=keep,
            start_new_session=True,
            preexec_fn=lambda: before_exec(agent, binding),
        )
    except OSError:
        os.close(reading)
        if ours is not None:
            ours.close()
        raise
    finally:
        os.close(writing)
        if theirs is not None:
            theirs.close()
    os.set_blocking(reading, False)
    if ours is not None:
        ours.setblocking(False)
    # our own bookkeeping waits for the pid; Popen must neither reap it nor complain that nobody did
    process.returncode = 0
    return RankProcess(
        rank=which["rank"],
        local_rank=which["local_rank"],
        pid=process.pid,
        started=process_tree.start_time(process.pid) or 0,
        pipe=reading,
        channel=ours,
        log_path=log_path(order, which["rank"]),
    )


#: what this process and its parents may ignore, and a new one must not
RESET = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def before_exec(agent: int, binding: Optional[Binding] = None) -> None:
    """In the new process: end with the agent, stay near the card, and have signals as a shell would leave them."""
    process_tree.die_with_parent(agent)
    for number in RESET:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if binding is not None:
        binding.apply()


def rank_environment(
    order: Dict[str, Any], which: Dict[str, Any], variables: Dict[str, str]
) -> Dict[str, str]:
    """The whole environment of one rank: the node's, defaults where unset, the launcher's own last."""
    environment = dict(variables)
    for name in order.get("unset", ()):
        environment.pop(name, None)
    for name, value in {**order.get("defaults", {}), **which.get("defaults", {})}.items():
        environment.setdefault(name, value)
    environment.update(order["variables"])
    environment.update(which["variables"])
    environment[RUN_VARIABLE] = order["token"]
    return environment


def log_path(order: Dict[str, Any], rank: int) -> str:
    """Where a rank's output is kept on this node."""
    return os.path.join(order["log_dir"], "rank-%05d.log" % rank)


def exit_status(wait_status: int) -> int:
    """Exit code, or minus the number of the signal that ended the process."""
    return -os.WTERMSIG(wait_status) if os.WIFSIGNALED(wait_status) else os.WEXITSTATUS(wait_status)
