"""A process that imports the training stack once and forks ranks from it, so that a test's ranks start at once.

    python -m tests.train.nursery [MODULE...]      reads one JSON job a line: argv, variables, code, folder

A rank's output, pid and exit code go into files of the job's folder.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any


def run_rank(job: dict[str, Any]) -> int:
    """Be the rank: run the job's code, then train, or be another program of the training stack."""
    from importlib import import_module

    main = import_module(job.get("module", "launcher.train.main")).main
    os.environ.update(job["variables"])
    try:
        exec(job["code"], {"__name__": "__rank__"})  # noqa: S102  # the test's own words
        return main(job["argv"])
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1


def start(job: dict[str, Any]) -> None:
    """Fork a process that forks the rank and waits for it; the code of death by a signal is negative."""
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder = Path(job["folder"])
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT, 0o644)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = run_rank(job)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    (folder / "pid").write_text(str(pid))
    status = os.waitpid(pid, 0)[1]
    (folder / "code.partial").write_text(str(os.waitstatus_to_exitcode(status)))
    os.replace(folder / "code.partial", folder / "code")
    os._exit(0)


def serve() -> None:
    """Fork until stdin ends."""
    from launcher.train.main import import_stack

    import_stack()
    import launcher.train.job  # noqa: F401

    for module in sys.argv[1:]:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        start(json.loads(line))


if __name__ == "__main__":
    serve()
