"""``dcu-launch`` in a batch script of the Slurm lab, something that happens to it, and what is left of it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.lab.lab import BIN
from tests.lab.process import HostProcess
from tests.slurm.slurm_lab import SlurmLab, wait_for

UP_LIMIT_S = 60.0


class JobRun:
    """A job whose script runs ``dcu-launch`` on a program, and then what stands behind it.

    Args:
        program: Python; prints ``rank N is up``.
        words: options of dcu-launch.
        arguments: of the program.
        options: of sbatch; two nodes with two cards each unless given.
        before, after: lines of the script around it.
        name: of files, for tests with two jobs.
    """

    def __init__(
        self, slurm: SlurmLab, folder: Path, program: str, *words: str, arguments: str = "", name: str = "run",
        options: Sequence[str] = ("-N2", "--gres=dcu:2"), before: str = "", after: str = "",
    ) -> None:  # fmt: skip
        self.slurm, self.folder, self.name = slurm, folder, name
        target = program
        if "\n" in program:
            target = f"{name}.py"
            (folder / target).write_text(program)
        # the cards are made up, and torch would say so
        said = " ".join(["--no-torch-check", *words] if target else words)
        line = f"{BIN}/dcu-launch --run-dir {name} {said} {target} {arguments}"
        script = folder / f"{name}.sh"
        script.write_text(f"#!/bin/bash\n{before}\n{line if after else 'exec ' + line}\n{after}\n")
        self.job = slurm.submit(script, "-o", f"{name}.out", *options)

    def said(self) -> str:
        """What the job has written."""
        path = self.folder / f"{self.name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_up(self, ranks: int = 4) -> None:
        """Wait until every rank has said so."""
        wait_for(
            lambda: len(set(re.findall("rank (\\d+) is up", self.said()))) == ranks, UP_LIMIT_S, self.said
        )

    def processes(self, host: int, beginning: str) -> list[HostProcess]:
        """Processes of a host whose command line begins so."""
        found = [entry for entry in self.slurm.lab.processes(host) if entry.cmdline.startswith(beginning)]
        assert found, [entry.cmdline[:200] for entry in self.slurm.lab.processes(host)]
        return found

    def head(self) -> HostProcess:
        """dcu-launch itself."""
        found = [
            entry for entry in self.slurm.lab.processes(1) if f" {BIN}/dcu-launch --run-dir" in entry.cmdline
        ]
        return found[0]

    def kill_srun(self) -> None:
        """KILL for srun and for the process beside it that would end the step in its place."""
        for process in self.processes(1, "srun --nodes"):
            process.kill()

    def wait_gone(self, hosts: Sequence[int], within_s: float, *but: str) -> float:
        """Wait until nothing of the job is left on these hosts; the seconds it took.

        Args:
            but: beginnings of command lines that may stay.
        """
        begun = time.monotonic()

        def left() -> list[str]:
            found = [entry.cmdline[:200] for host in hosts for entry in self.slurm.lab.leftover(host)]
            return [line for line in found if not line.startswith(but)]

        wait_for(lambda: not left(), within_s, lambda: f"still there: {left()}\n{self.said()}")
        return time.monotonic() - begun

    def done(self, within_s: float = 60.0) -> str:
        """Wait for Slurm's end of the job; its state."""
        return self.slurm.wait_state(
            self.job, "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", within_s=within_s
        )

    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return dict(json.loads((self.folder / self.name / "summary.json").read_text()))

    def logs(self) -> list[str]:
        """The ranks' output, in their order."""
        paths = sorted((self.folder / self.name / "logs").glob("*/rank-*.log"), key=lambda path: path.name)
        return [path.read_text() for path in paths]
