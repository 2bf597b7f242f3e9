"""``dcu-launch ps``: the runs of this user, how far they are, or how they ended and why."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import click

from launcher.commands.find_run import all_runs, tell_job
from launcher.launch.run_state import RunState

RECENT_S = 86400.0
COLUMNS = ("RUN", "STATE", "STEP", "LOSS", "HOSTS", "RANKS", "AGE", "HEAD", "FOLDER")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("-a", "--all", "show_all", is_flag=True, help="Also runs that ended more than a day ago.")
@click.option("--json", "as_json", is_flag=True, help="One JSON array of all that is known.")
@click.option("--names", is_flag=True, hidden=True)
def ps(show_all: bool, as_json: bool, names: bool) -> int:
    """List your runs: those that go on, and those that ended within a day.

    A run goes on (starting, running, stopping), told how it ended (done, failed, stopped), or its head is gone without a
    word (dead). Runs are found by the list in ~/.local/state/dcu-launch/runs and in runs/ of this folder.
    """
    now = time.time()
    runs = [run for run in all_runs() if show_all or run.is_alive or now - (run.ended or 0.0) < RECENT_S]
    if names:  # for shells that complete words
        click.echo("\n".join(run.name for run in runs))
        return 0
    if as_json:
        click.echo(json.dumps([_to_dict(run) for run in runs], ensure_ascii=False, indent=2))
        return 0
    if not runs:
        click.echo("no runs of the last day" if not show_all else "no runs")
        return 0
    for line in _table([COLUMNS, *(_row(run, now) for run in runs)]):
        click.echo(line)
    for run in runs:
        if run.why:
            to_come = tell_job(run)
            first = run.why.strip().splitlines()[0]
            click.echo(f"{run.name}: {run.state}: {first}{f'; {to_come}' if to_come else ''}")
    return 0


def _row(run: RunState, now: float) -> Sequence[str]:
    head = run.head
    of_steps = f"/{head.steps}" if head is not None and head.steps else ""
    spent = (run.ended or now) - head.started if head is not None else None
    return (
        run.name,
        run.state if run.exit in (None, 0) else f"{run.state} ({run.exit})",
        "-" if run.step is None else f"{run.step}{of_steps}",
        f"{run.loss:.4f}" if isinstance(run.loss, int | float) else "-",
        "-" if head is None else str(len(head.hosts)),
        "-" if run.ranks is None else str(run.ranks),
        "-" if spent is None else _format_time(spent),
        "-" if head is None else f"{head.host}:{head.pid}",
        str(run.path),
    )


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _format_time(seconds: float) -> str:
    """``45s``, ``12m03s``, ``3h05m`` or ``2d04h``."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d{hours % 24:02d}h"
    if hours:
        return f"{hours}h{minutes % 60:02d}m"
    return f"{minutes}m{whole % 60:02d}s" if minutes else f"{whole}s"


def _to_dict(run: RunState) -> dict[str, Any]:
    head = run.head
    return {
        "name": run.name,
        "folder": str(run.path),
        "state": run.state,
        "why": run.why,
        "exit": run.exit,
        "step": run.step,
        "loss": run.loss,
        "ended": run.ended,
        "started": head.started if head else None,
        "target": head.target if head else None,
        "kind": head.kind if head else None,
        "ranks": run.ranks,
        "hosts": list(head.hosts) if head else None,
        "head": {"host": head.host, "pid": head.pid} if head else None,
        "detached": head.detached if head else None,
    }
