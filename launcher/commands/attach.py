"""``dcu-launch attach``: the view of a run's own terminal, from another one; Ctrl-C leaves the run alone."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

import click

from launcher.base.errors import UsageError
from launcher.commands.find_run import OF_DAMAGED, find_run
from launcher.commands.logs import STATE_EVERY_S, TICK_S, is_alive, wait_logs
from launcher.commands.rank_list import read_ranks
from launcher.launch.board import read_rows
from launcher.launch.run_state import RunState, read_run
from launcher.report.follow import LogFollower, RunFollower, describe
from launcher.report.picture import Picture
from launcher.report.rank_logs import RankLog
from launcher.report.terminal import TerminalView

#: lines of each rank from before
LINES_BEFORE = 5


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--ranks", "rank_list", metavar="LIST", help="Show only these ranks' output, such as 0,8-11.")
@click.option("--plain", is_flag=True, help="Lines alone, without the view at the foot of the terminal.")
@click.argument("word", metavar="[RUN]", required=False)
def attach(word: str | None, rank_list: str | None, plain: bool) -> int:
    """Watch a run as on its own terminal, until it ends; then this command has the run's exit code.

    Ctrl-C leaves the run as it is. RUN is a run folder or its name; without it the run of yours that goes on, this
    folder's own before all others, else the newest.
    """
    run = find_run(word)
    if not run.is_alive:
        return tell_end(run)
    leave = Leave()
    with leave:
        where = f"process {run.head.pid} on {run.head.host}" if run.head else "an unknown head"
        click.echo(f"dcu-launch: {run.name}, led by {where}; Ctrl-C leaves it running")
        found = wait_logs(run, lambda: leave.asked)
        if found:
            _watch(run, found, read_ranks(rank_list, len(found)), plain, leave)
    if leave.asked and is_alive(run):
        click.echo(f"dcu-launch: {run.name} goes on; dcu-launch stop {run.name} ends it")
        return 0
    return tell_end(read_run(run.path) or run)


class Leave:
    """Ctrl-C while inside: noted, no exception in the middle of a line."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, _: int, __: FrameType | None) -> None:
        self.asked = True


def _watch(
    run: RunState, found: list[RankLog], ranks: frozenset[int] | None, plain: bool, leave: Leave
) -> None:
    hosts, steps = [log.host for log in found], run.head.steps if run.head else None
    picture = Picture(run.name, steps, run.head.started if run.head else time.time(), hosts)
    view = TerminalView(
        sys.stdout,
        hosts_of_ranks=hosts,
        ranks=ranks,
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        total_steps=steps,
        picture=None if plain else picture,
    )
    shown = [log for log in found if ranks is None or log.rank in ranks]
    logs, events = LogFollower(shown, LINES_BEFORE), RunFollower(run.path)
    events.take_events()
    before = [row for row in events.take_rows() if isinstance(row.get("step"), int)]
    for row in before:
        picture.add_row(row["step"], row)
    for row in before[-1:]:
        view.show_row(row["step"], row)
    next_look, goes_on = 0.0, True
    try:
        while goes_on and not leave.asked and not view.is_broken:
            now = time.monotonic()
            if now >= next_look:
                goes_on, next_look = is_alive(run), now + STATE_EVERY_S
                view.nodes(read_rows(run.path))
            logs.feed(view, now, everything=not goes_on)
            pass_on(events, view)
            view.tick(now)
            time.sleep(TICK_S)
    finally:
        view.close()


def pass_on(events: RunFollower, view: TerminalView) -> None:
    """Show new rows and events."""
    for row in events.take_rows():
        if isinstance(row.get("step"), int):
            view.metric(row["step"], row)
    for event in events.take_events():
        text = describe(event)
        if text:
            view.status(text)


def tell_end(run: RunState) -> int:
    """Say how a run ended; returns its exit code.

    Raises:
        UsageError: its folder cannot be read any more.
    """
    if run.exit is None:
        raise UsageError(f"{run.name}: {run.path} cannot be read")
    if run.exit == 0:
        click.echo(f"dcu-launch: {run.name} is done; run folder {run.path}")
        return 0
    for number, line in enumerate((run.why or f"exit code {run.exit}").split("\n")):
        click.echo(f"dcu-launch: {run.name} {run.state}: {line}" if number == 0 else f"  {line}", err=True)
    if run.state == "damaged":
        click.echo(f"  hint: {OF_DAMAGED}", err=True)
    return run.exit
