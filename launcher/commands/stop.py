"""``dcu-launch stop`` and ``save``: ask a run of this user for its end, or for a checkpoint, from any process."""

from __future__ import annotations

import time
from typing import Any

import click

from launcher.base.errors import NodeLostError, UsageError
from launcher.commands.find_run import find_run
from launcher.launch.asking import ask
from launcher.launch.run_state import RunState, end_rows, read_run

LOOK_EVERY_S = 0.3
#: so long a head may take to answer: network disks show some things late
ANSWER_LIMIT_S = 60.0

_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.command(context_settings=_SETTINGS)
@click.option("--now", is_flag=True, help="Kill the ranks at once; nothing is saved.")
@click.option("--no-wait", is_flag=True, help="Ask, and do not wait for the end.")
@click.argument("word", metavar="[RUN]", required=False)
def stop(word: str | None, now: bool, no_wait: bool) -> int:
    """Stop a run: each rank gets TERM, has --grace seconds (recipes save), then KILL.

    RUN is a run folder or its name; without it the one run that goes on in the working
    folder. Where several do, or only others elsewhere, none is asked and all are listed.
    """
    run = find_run(word, alive=True)
    _ask(run, "stop", now=now)
    if no_wait:
        click.echo(f"dcu-launch: asked {run.name} ({run.path}) to stop")
        return 0
    click.echo(f"dcu-launch: asked {run.name} ({run.path}) to stop, waiting for its end")
    asked = time.monotonic()
    while (seen := _look_again(run)).is_alive:
        if seen.state != "stopping" and time.monotonic() - asked > ANSWER_LIMIT_S:
            raise NodeLostError(
                f"{run.name}: no answer from its head for {ANSWER_LIMIT_S:.0f} s{_where(run)}"
            )
        time.sleep(LOOK_EVERY_S)
    why = f": {seen.why}" if seen.why else ""
    click.echo(f"dcu-launch: {run.name} is {seen.state}, exit code {seen.exit}{why}")
    return 0


@click.command(context_settings=_SETTINGS)
@click.option("--no-wait", is_flag=True, help="Ask, and do not wait for the checkpoint.")
@click.argument("word", metavar="[RUN]", required=False)
def save(word: str | None, no_wait: bool) -> int:
    """Have a recipe's run write a checkpoint at the end of its present step.

    RUN is a run folder or its name; without it the one run that goes on in the working
    folder. Where several do, or only others elsewhere, none is asked and all are listed.
    """
    run = find_run(word, alive=True)
    if run.head is not None and run.head.kind != "recipe":
        raise UsageError(
            f"{run.name} runs {run.head.target}, which decides itself when it saves",
            "save is for recipes; dcu-launch stop sends TERM, which a script may answer by saving",
        )
    identity = _ask(run, "save")
    if no_wait:
        click.echo(f"dcu-launch: asked {run.name} ({run.path}) for a checkpoint")
        return 0
    click.echo(
        f"dcu-launch: asked {run.name} ({run.path}) for a checkpoint, waiting for it "
        "(Ctrl-C: it comes all the same)"
    )
    path = _wait_checkpoint(run, identity)
    click.echo(f"dcu-launch: {run.name}: checkpoint {path}")
    return 0


def _ask(run: RunState, want: str, *, now: bool = False) -> str:
    try:
        return ask(run.path, want, now=now)
    except OSError as error:
        raise UsageError(
            f"{run.name}: {run.path} does not take what is asked: {error.strerror}",
            f"a signal to its head does, too{_where(run)}",
        ) from None


def _where(run: RunState) -> str:
    return f": process {run.head.pid} on {run.head.host}" if run.head is not None else ""


def _look_again(run: RunState) -> RunState:
    seen = read_run(run.path)
    if seen is None:
        raise UsageError(f"{run.name}: its run folder is gone: {run.path}")
    return seen


def _wait_checkpoint(run: RunState, identity: str) -> str:
    """The path of the first checkpoint after the request was taken up."""
    asked = time.monotonic()
    while True:
        # looked at before its events: what it has told until its end counts
        seen = _look_again(run)
        answer, path = _find_answer(run, identity)
        if answer is not None and answer.get("refused"):
            raise UsageError(f"{run.name}: {answer['refused']}")
        if path:
            return path
        if not seen.is_alive:
            why = f": {seen.why}" if seen.why else ""
            raise UsageError(f"{run.name} ended without this checkpoint: it is {seen.state}{why}")
        if answer is None and time.monotonic() - asked > ANSWER_LIMIT_S:
            click.echo(f"dcu-launch: {run.name} does not train yet, or its head does not answer{_where(run)}")
            asked = time.monotonic()
        time.sleep(LOOK_EVERY_S)


def _find_answer(run: RunState, identity: str) -> tuple[dict[str, Any] | None, str]:
    path = ""
    for event in end_rows(run.path / "events.jsonl"):
        data = event.get("data", {})
        if event.get("kind") == "checkpoint":
            path = str(data.get("path", ""))
        elif event.get("kind") == "request" and data.get("id") == identity:
            return data, path
    return None, ""
