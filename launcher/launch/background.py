"""``--detach``: the head goes on in the background once its ranks are up. Runs on the head, before anything else does.

The process is split before there is a thread or a session. The child leads the run in a session of its own; the parent
shows what it says until all ranks are started, so that keys and agents of the terminal serve every connection, and a
mistake ends the command with its own exit code.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

HEAD_LOG = "head.log"
LOOK_EVERY_S = 0.1


@dataclass
class Background:
    """The child's side: it leads the run.

    Attributes:
        descriptor: the parent waits at its other end; -1 once told.
    """

    descriptor: int

    def tell_up(self) -> None:
        """Let the parent go: all ranks are started."""
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):  # nobody waits any more
                os.write(self.descriptor, b"u")
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(frozen=True, slots=True)
class Foreground:
    """The parent's side: it watches the child come up.

    Attributes:
        pid: the child.
        descriptor: says ``u`` when all ranks are started; its end comes when the child ended before.
        begin: size of the log before: an earlier run of this folder may have left one.
    """

    pid: int
    descriptor: int
    log: Path
    begin: int

    def wait_up(self) -> int | None:
        """Show what the child says until its ranks are up: None; or until it ended before: its exit code.

        Signals to this process are the child's while it waits.
        """
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number in before:
            signal.signal(number, lambda number, _: os.kill(self.pid, number))
        try:
            with open(self.log, "rb") as said:
                said.seek(self.begin)
                word = None
                while word is None:
                    if select.select([self.descriptor], [], [], LOOK_EVERY_S)[0]:
                        word = os.read(self.descriptor, 1)
                    _pass_on(said.read())
                if word:
                    return None
                code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
                _pass_on(said.read())
                return code if code >= 0 else 128 - code
        finally:
            os.close(self.descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)


def _pass_on(data: bytes) -> None:
    """On stderr: stdout is for what the command itself says when the run goes on."""
    while data:
        try:
            data = data[os.write(2, data) :]
        except OSError:
            return  # nobody reads; the log has it


def go_background(run_dir: Path) -> Background | Foreground:
    """Split this process; what the child says goes to ``head.log`` of the run folder.

    Raises:
        OSError: the log cannot be written.
    """
    log = run_dir / HEAD_LOG
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    begin = os.fstat(output).st_size
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(output)
        os.close(writing)
        return Foreground(pid, reading, log, begin)
    os.close(reading)
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal may go
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _let_go_inherited()
    return Background(writing)


def _let_go_inherited() -> None:
    """What a shell left open for its commands, a lock among them: it would be held as long as the run lasts."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        with contextlib.suppress(OSError):  # the folder's own is gone by now
            if number > 2 and os.get_inheritable(number):
                os.close(number)
