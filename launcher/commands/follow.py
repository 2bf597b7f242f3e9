"""A Slurm job followed to its end from a login node: its state by Slurm, loss and events by its run folder.

Ctrl-C leaves the job as it is.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import click

from launcher.base.errors import UsageError
from launcher.commands.attach import Leave, pass_on
from launcher.report.follow import RunFollower
from launcher.report.terminal import TerminalView
from launcher.slurm.sbatch import JobState, read_job

#: how often Slurm is asked; the folder is looked at more often
ASK_EVERY_S = 5.0
LOOK_EVERY_S = 0.5
#: so long Slurm may not answer, or not know the job, before it counts as gone
SILENT_S = 120.0


def follow_job(number: str, run_dir: Path) -> int:
    """Show what becomes of a job until it ends; returns its exit code, 0 where the user leaves before.

    Raises:
        UsageError: Slurm has lost the job, and its run folder does not say how it ended.
    """
    view = TerminalView(
        sys.stdout,
        hosts_of_ranks=(),
        ranks=frozenset(),
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        total_steps=None,
    )
    watch = _Watch(number, view)
    events = RunFollower(run_dir)
    leave = Leave()
    try:
        with leave:
            while not leave.asked and not view.is_broken and watch.goes_on():
                pass_on(events, view)
                view.tick(time.monotonic())
                time.sleep(LOOK_EVERY_S)
        pass_on(events, view)
    finally:
        view.close()
    if watch.goes_on_still:
        click.echo(f"dcu-launch: job {number} goes on; scancel {number} ends it")
        return 0
    return _tell_end(number, watch.last, run_dir)


class _Watch:
    """Asks Slurm now and then, and tells what changed."""

    def __init__(self, number: str, view: TerminalView) -> None:
        self.last: JobState | None = None
        self.goes_on_still = True
        self._number, self._view = number, view
        self._told: tuple[Any, ...] = ()
        self._next = 0.0
        self._heard = time.monotonic()

    def goes_on(self) -> bool:
        """Whether the job may still do something."""
        now = time.monotonic()
        if now < self._next:
            return True
        self._next = now + ASK_EVERY_S
        state = read_job(self._number)
        if state is None:
            self.goes_on_still = now - self._heard < SILENT_S
            return self.goes_on_still
        self._heard, self.last = now, state
        told = (state.state, state.reason, state.restarts, state.nodes)
        if told != self._told:
            self._told = told
            self._view.status(f"job {self._number}: {describe_state(state)}")
        self.goes_on_still = not state.is_final
        return self.goes_on_still


def describe_state(state: JobState) -> str:
    """A state in one line, as in ``RUNNING on node[001-002], start 2``."""
    where = f" on {state.nodes}" if state.nodes and state.state == "RUNNING" else ""
    why = f" ({state.reason})" if state.reason else ""
    again = f", start {state.restarts + 1}" if state.restarts else ""
    return f"{state.state}{where}{why}{again}"


def _tell_end(number: str, last: JobState | None, run_dir: Path) -> int:
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = {}
    if last is not None and last.is_final:
        code = last.outcome
    elif isinstance(summary.get("exit"), int):
        code = int(summary["exit"])
    else:
        raise UsageError(
            f"Slurm does not know job {number} any more, and {run_dir} does not say how it ended"
        )
    if code == 0 and summary.get("exit") != 0:
        click.echo(
            f"dcu-launch: error: job {number} is {last.state if last else 'gone'}, but {run_dir} holds no run that is done: "
            f"see the job's output beside it, {run_dir}.slurm/out-{number}.txt", err=True,
        )  # fmt: skip
        return 1
    if code == 0:
        click.echo(f"dcu-launch: job {number} is done; run folder {run_dir}")
        return 0
    why = str(summary.get("message") or "").split("\n")
    state = last.state if last is not None else "gone"
    click.echo(
        f"dcu-launch: job {number}: {state}, exit code {code}" + (f": {why[0]}" if why[0] else ""), err=True
    )
    hints = [f"hint: {line}" for line in str(summary.get("hint") or "").split("\n") if line]
    for line in [*why[1:], *hints]:
        click.echo(f"  {line}", err=True)
    return code
