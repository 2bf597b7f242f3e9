"""A run of dcu-launch on lab hosts that something happens to, and what is left of it. For tests of faults."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab
from tests.lab.process import HostProcess

#: before every program: its rank, and how it says that it is up
PRELUDE = """\
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
def up():
    print("rank", rank, "is up", flush=True)
    open(f"up-{rank}", "w").close()
"""
UP_LIMIT_S = 30.0


class FaultyRun:
    """Starts ``dcu-launch`` on host 1 with two ranks on each host.

    Args:
        program: Python, after ``PRELUDE``; calls ``up()``.
        words: options of dcu-launch.
        hosts: how many.
        hostfile: instead of one line a host.
        name: folder of the run below the test's, for tests with two runs.
    """

    def __init__(
        self, lab: Lab, folder: Path, program: str, *words: str, hosts: int = 2, slots: int = 2, name: str = "run",
        hostfile: str = "", arguments: Sequence[str] = (), before: Sequence[str] = (), **popen: Any,
    ) -> None:  # fmt: skip
        self.lab = lab
        self.hosts = list(range(1, hosts + 1))
        self.ranks = hosts * slots
        self.folder = folder / name
        self.folder.mkdir()
        lab.up(hosts)
        lines = "".join(f"{lab.name(i)} slots={slots}\n" for i in self.hosts)
        (self.folder / "hosts").write_text(hostfile or lines)
        (self.folder / "program.py").write_text(PRELUDE + program)
        launch = ["dcu-launch", "--hosts", "hosts", "--run-dir", "out", *words, "program.py", *arguments]
        with open(self.folder / "said", "wb") as said:
            output = {"stdout": said, "stderr": said, **popen}
            # a head that hangs tells where, see ``_where_it_hangs``
            env = {"PYTHONFAULTHANDLER": "1"}
            self.head = lab.popen(1, [*before, *launch], cwd=self.folder, env=env, **output)

    # ---- while it runs

    def said(self) -> str:
        """What the head has written so far."""
        return (self.folder / "said").read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], what: str, within_s: float = UP_LIMIT_S) -> None:
        """Wait for something that only a living head can bring about."""
        deadline = time.monotonic() + within_s
        while not condition():
            assert self.head.poll() is None, (
                f"the head ended with {self.head.returncode} before {what}:\n{self.said()}"
            )
            assert time.monotonic() < deadline, f"no {what} within {within_s} s:\n{self._where_it_hangs()}"
            time.sleep(0.02)

    def _where_it_hangs(self) -> str:
        """What the head has said, and the stacks of its threads; it ends by this."""
        self.head.send_signal(signal.SIGABRT)
        time.sleep(1)
        everything = "\n".join(f"{host}: {p.cmdline}" for host in self.hosts for p in self.lab.leftover(host))
        return f"{self.said()}\n{everything}"

    def wait_up(self) -> None:
        """Wait until every rank has said so."""
        self.wait_for(lambda: len(list(self.folder.glob("up-*"))) == self.ranks, "all ranks up")

    def wait_said(self, text: str, within_s: float = UP_LIMIT_S) -> None:
        """Wait until the head has written something."""
        self.wait_for(lambda: text in self.said(), text, within_s)

    def processes(self, host: int, word: str) -> list[HostProcess]:
        """Processes of a host with this word in their command line."""
        return [process for process in self.lab.processes(host) if word in process.cmdline]

    def rank_process(self, rank: int) -> HostProcess:
        """The process of a rank, as its host has it."""
        events = [
            json.loads(line) for line in (self.folder / "out" / "events.jsonl").read_text().splitlines()
        ]
        pid = next(e["data"]["pid"] for e in events if e["kind"] == "rank_started" and e["rank"] == rank)
        host = self.hosts[rank * len(self.hosts) // self.ranks]
        return next(process for process in self.lab.processes(host) if process.pid == pid)

    def keeper(self, host: int, name: str = "dcu-agent") -> HostProcess:
        """The agent of a host, or its guardian."""
        return next(
            process
            for process in self.lab.processes(host)
            if Path(f"/proc/{process.outer_pid}/comm").read_text().strip() == name
        )

    def signal(self, number: int) -> None:
        """A signal to the head."""
        self.head.send_signal(number)

    # ---- its end

    def wait_end(self, within_s: float) -> tuple[int, float]:
        """Exit code of the head, and seconds from now until nothing is left on any host that is up."""
        begun = time.monotonic()
        try:
            code = self.head.wait(within_s)
        except Exception:
            raise AssertionError(f"not ended within {within_s} s:\n{self._where_it_hangs()}") from None
        for host in self.hosts:
            self.lab.wait_gone(host, within_s=max(0.2, within_s - (time.monotonic() - begun)))
        return code, time.monotonic() - begun

    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return dict(json.loads((self.folder / "out" / "summary.json").read_text()))

    def told(self) -> str:
        """The last message: from ``error:`` on."""
        return self.said().rpartition("dcu-launch: error: ")[2]

    def check(self, code: int, kind: str, *patterns: str, origin: str = "launcher", **summary: Any) -> None:
        """Exit code, summary and what was told; no traceback of ours."""
        assert self.head.returncode == code, self.said()
        found = self.summary()
        assert {"exit": code, "kind": kind, "origin": origin, **summary}.items() <= found.items(), found
        for pattern in patterns:
            assert re.search(pattern, self.told()), f"{pattern!r} is not in:\n{self.told()}"
        assert "internal error" not in self.said()
        assert "launcher/cli.py" not in self.said()


def record(what: str, seconds: float, promised: float) -> None:
    """Keep a figure, for the documentation: one line a fault in the file that FAULT_FIGURES names."""
    line = f"{seconds:6.2f} s of {promised:4.0f} s  {what}\n"
    if os.environ.get("FAULT_FIGURES"):
        with open(os.environ["FAULT_FIGURES"], "a", encoding="utf-8") as file:
            file.write(line)


STOPS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
