"""Other programs, asked side by side, each with a time limit: what the probe learns from them. Runs in the agent."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    import subprocess
    from typing import Callable, Dict, List, Mapping, Optional, Tuple

#: more is no answer but a fault, and would fill the report
MAX_TEXT = 1 << 20


class Answer:
    """What a program said.

    Attributes:
        text: its stdout.
        error: why there is no good answer, with the end of its stderr; empty when it ended with 0.
    """

    def __init__(self, text: str = "", error: str = "") -> None:
        self.text = text
        self.error = error


def ask_all(
    commands: Mapping[str, List[str]], variables: Mapping[str, str], limit_s: float
) -> Dict[str, Answer]:
    """Run all commands at once; one that is missing, fails, or takes longer than ``limit_s`` says so in its answer."""
    if not commands:
        return {}
    import threading

    answers: Dict[str, Answer] = {}

    def run(name: str, argv: List[str]) -> None:
        answers[name] = ask(argv, variables, limit_s)

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in list(commands.items())[1:]]
    for thread in threads:
        thread.start()
    for name, argv in list(commands.items())[:1]:
        run(name, argv)
    for thread in threads:
        thread.join(limit_s + 2)
    return {name: answers.get(name, Answer(error="no answer")) for name in commands}


def ask(
    argv: List[str],
    variables: Mapping[str, str],
    limit_s: float,
    cwd: Optional[str] = None,
    on_start: Callable[[int], None] = lambda pid: None,
) -> Answer:
    """Run one command in a session of its own, which is killed as a whole when it takes too long.

    Args:
        on_start: is given its pid.
    """
    import signal
    import subprocess  # here: most nodes answer without asking any program

    try:
        process = subprocess.Popen(
            argv,
            env=dict(variables),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Answer(error="%s: %s" % (argv[0], error.strerror))
    on_start(process.pid)
    out, err, why = _listen(process, limit_s)
    if why:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        process.wait()
        return Answer(_text(out), why)
    if process.returncode < 0:
        return Answer(
            _text(out),
            ("killed by signal %d: %s" % (-process.returncode, _text(err)[-300:].strip())).rstrip(": "),
        )
    if process.returncode:
        return Answer(_text(out), "code %d: %s" % (process.returncode, _text(err)[-300:].strip()))
    return Answer(_text(out))


class _Said:
    """What a program says on stdout and stderr; others may hold these open after its end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        import select

        self._streams = [stream for stream in (process.stdout, process.stderr) if stream]
        self._kept = {stream.fileno(): bytearray() for stream in self._streams}
        self._poll = select.poll()
        for descriptor in self._kept:
            os.set_blocking(descriptor, False)
            self._poll.register(descriptor, select.POLLIN)
        self._open = len(self._kept)

    def take(self, wait_ms: int) -> bool:
        """Read what is there, waiting at most so long for it; False when nothing came."""
        if not self._open:
            time.sleep(min(wait_ms, 2) / 1000)
            return False
        ready = [number for number, _ in self._poll.poll(wait_ms)]
        for descriptor in ready:
            data = os.read(descriptor, 1 << 16)
            self._kept[descriptor] += data
            if not data:
                self._poll.unregister(descriptor)
                self._open -= 1
        return bool(ready)

    @property
    def is_too_much(self) -> bool:
        """Whether it is no answer but a fault."""
        return any(len(kept) > MAX_TEXT for kept in self._kept.values())

    def close(self) -> Tuple[bytes, bytes]:
        """All that was said on stdout and stderr."""
        for stream in self._streams:
            stream.close()
        out, err = self._kept.values()
        return bytes(out), bytes(err)


def _listen(process: subprocess.Popen[bytes], limit_s: float) -> Tuple[bytes, bytes, str]:
    """What a program says until it ends, and why it has to be ended; empty when it ended by itself."""
    said, deadline, why = _Said(process), time.monotonic() + limit_s, ""
    while not why:
        has_ended = process.poll() is not None
        came = said.take(0 if has_ended else 20)
        if has_ended and not came:
            break
        if said.is_too_much:
            why = "it says more than %d MiB" % (MAX_TEXT >> 20)
        elif not has_ended and time.monotonic() > deadline:
            why = "no answer within %.0f s" % limit_s
    return (*said.close(), why)


def _text(data: bytes) -> str:
    return data[:MAX_TEXT].decode("utf-8", "replace")


def find_program(name: str, variables: Mapping[str, str], folders: List[str]) -> Optional[str]:
    """Path of a program in some folders, else on the PATH of ``variables``."""
    for folder in folders + variables.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None
