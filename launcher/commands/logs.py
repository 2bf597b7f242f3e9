"""``dcu-launch logs``: what the ranks of a run said, from its folder, while it goes on or afterwards."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import click

from launcher.base.errors import UsageError
from launcher.commands.find_run import find_run
from launcher.commands.rank_list import read_ranks
from launcher.launch.run_state import RunState, read_run
from launcher.report.follow import LogFollower
from launcher.report.rank_logs import GrowingFile, RankLog, find_rank_logs
from launcher.report.terminal import TerminalView

TICK_S = 0.1
#: how often to look whether the run still goes on
STATE_EVERY_S = 1.0
FOLLOWED_LINES = 10


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the run ends or Ctrl-C.")
@click.option("--rank", "--ranks", "rank_list", metavar="LIST", help="Only these ranks, such as 0,8-11.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="N",
    help="The last N lines of each rank; default: all, with -f the last 10.",
)
@click.option("--head", "of_head", is_flag=True, help="What the head of a run with --detach said instead.")
@click.argument("word", metavar="[RUN]", required=False)
def logs(word: str | None, follow: bool, rank_list: str | None, lines: int | None, of_head: bool) -> int:
    """Show what the ranks of a run said; of one rank alone, byte for byte.

    RUN is a run folder or its name; without it the run of yours that goes on, this folder's own before all others,
    else the newest.
    """
    run = find_run(word)
    if run.state == "damaged":
        click.echo(f"dcu-launch: {run.name} is damaged: {run.why}", err=True)
    last_lines = FOLLOWED_LINES if follow and lines is None else lines
    try:
        if of_head:
            return _copy(run, _head_log(run), last_lines, follow)
        found = wait_logs(run) if follow else find_rank_logs(run.path)
        if not found and run.state == "damaged":
            raise UsageError(f"{run.name}: no rank's log lies in {run.path / 'logs'}")
        if not found:
            raise UsageError(f"{run.name}: no rank was started: it is {run.state}" + _because(run))
        ranks = read_ranks(rank_list, len(found), "--rank")
        chosen = [log for log in found if ranks is None or log.rank in ranks]
        if len(chosen) == 1 and rank_list is not None:
            return _copy(run, chosen[0], last_lines, follow)
        return _show(run, found, chosen, last_lines, follow)
    except KeyboardInterrupt:
        return 130


def _because(run: RunState) -> str:
    return f": {run.why}" if run.why else ""


def _head_log(run: RunState) -> RankLog:
    path = run.path / "head.log"
    if not path.exists():
        raise UsageError(f"{run.name} was not started with --detach: its head spoke to a terminal")
    return RankLog(-1, "", path)


def wait_logs(run: RunState, is_asked: Callable[[], bool] = lambda: False) -> list[RankLog]:
    """The logs of all ranks, once the run has come so far; empty when it ended, or somebody asked, before."""
    while not (found := find_rank_logs(run.path)) and is_alive(run) and not is_asked():
        time.sleep(TICK_S)
    return found


def is_alive(run: RunState) -> bool:
    """Whether the run still goes on."""
    seen = read_run(run.path)
    return seen is not None and seen.is_alive


def _copy(run: RunState, log: RankLog, last_lines: int | None, follow: bool) -> int:
    """One file as it is: for other programs."""
    file = GrowingFile(log.path, last_lines)
    sys.stdout.flush()
    while True:
        goes_on = follow and is_alive(run)  # looked at before the file: what it said until its end counts
        while data := file.read():
            _write_all(data)
        if not goes_on:
            return 0
        time.sleep(STATE_EVERY_S / 4)


def _write_all(data: bytes) -> None:
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _show(
    run: RunState, found: list[RankLog], chosen: list[RankLog], last_lines: int | None, follow: bool
) -> int:
    view = TerminalView(
        sys.stdout,
        hosts_of_ranks=[log.host for log in found],
        ranks=frozenset(log.rank for log in chosen),
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        total_steps=None,
        live=False,
    )
    follower = LogFollower(chosen, last_lines)
    next_look, goes_on = 0.0, follow
    try:
        while goes_on and not view.is_broken:
            now = time.monotonic()
            if now >= next_look:
                goes_on, next_look = is_alive(run), now + STATE_EVERY_S
            follower.feed(view, now)
            view.tick(now)
            time.sleep(TICK_S)
        follower.feed(view, time.monotonic(), everything=True)
    finally:
        view.close()
    return 0
