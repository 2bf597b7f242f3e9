"""Other programs, asked side by side, each with a time limit: what the probe learns from them. Runs in the agent."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Callable, Dict, List, Mapping, Optional

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
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except OSError:
            pass
        try:  # what it said until then is worth having; a grandchild may still hold the pipes
            out, err = process.communicate(timeout=1.0)
        except subprocess.TimeoutExpired:
            out = b""
        return Answer(_text(out), "no answer within %.0f s" % limit_s)
    if process.returncode < 0:
        return Answer(
            _text(out), "killed by signal %d: %s" % (-process.returncode, _text(err)[-300:].strip())
        )
    if process.returncode:
        return Answer(_text(out), "code %d: %s" % (process.returncode, _text(err)[-300:].strip()))
    return Answer(_text(out))


def _text(data: Optional[bytes]) -> str:
    return (data or b"")[:MAX_TEXT].decode("utf-8", "replace")


def find_program(name: str, variables: Mapping[str, str], folders: List[str]) -> Optional[str]:
    """Path of a program in some folders, else on the PATH of ``variables``."""
    for folder in folders + variables.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, name)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None
