"""The end of a run in words, in summary.json and in the exit code. Runs on the head."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import click

from launcher.base.errors import (
    LauncherError,
    NodeLostError,
    PreflightError,
    RankFailedError,
    ResultError,
    StoppedError,
)
from launcher.commands.request import Request
from launcher.commands.smoke import judge_run
from launcher.launch.fetch import Fetched
from launcher.launch.outcome import Outcome
from launcher.launch.run_folder import RunFolder
from launcher.launch.signals import INTERRUPTING


def conclude(
    outcome: Outcome,
    request: Request,
    folder: RunFolder,
    fetched: Fetched | None = None,
    refusal: PreflightError | None = None,
) -> int:
    """Tell how the run ended, write its summary and return 0, or raise the error with its exit code.

    Args:
        fetched: what the first node had, where it does not see the run folder.
        refusal: what a run is refused for whose outcome says so.

    Raises:
        LauncherError: the run did not end well.
    """
    error = refusal if outcome.kind == "refused" else error_of(outcome, request)
    error = error or (result_error(fetched, request) if fetched else None)
    verdict = judge_run(request.options, outcome.results, folder.path) if error is None else None
    error = verdict.error if verdict else error
    summary: dict[str, Any] = {"exit": 0, "origin": "launcher", "kind": "done", "host": "", "rank": None}
    if error is not None:
        summary = summarize_error(error)
        kinds = {"done": "smoke_failed" if verdict else "result_not_fetched", "refused": "preflight"}
        summary["kind"] = kinds.get(outcome.kind, outcome.kind)
        if outcome.kind == "rank_failed":
            from launcher.report.failure import guilty

            culprit = guilty(outcome.failures)
            summary.update(origin="rank", host=culprit.host, rank=culprit.rank)
        elif outcome.lost:
            summary.update(host=outcome.lost[0][0])
        elif outcome.kind == "done" and fetched is not None:
            summary.update(host=fetched.host)
    summary.update(_remains(outcome, fetched, folder))
    if verdict is not None:
        summary["smoke"] = verdict.to_dict()
    show_losses(folder)
    if verdict is not None:
        click.echo(verdict.tell())
    folder.add_event("end", data={"exit": summary["exit"], "kind": summary["kind"]})
    folder.write_json("summary.json", summary)
    write_report(folder)
    if error is not None:
        raise error
    if "path" in outcome.results:
        more = ", ".join(f"{name} {value}" for name, value in outcome.results.items() if name != "path")
        click.echo(f"dcu-launch: result: {outcome.results['path']}" + (f" ({more})" if more else ""))
    click.echo(f"dcu-launch: done; run folder {folder.path}")
    if request.spec.target == "demo":
        click.echo(
            "dcu-launch: now your own: dcu-launch init --model DIR --data FILE writes recipe and hostfile"
        )
    return 0


def _remains(outcome: Outcome, fetched: Fetched | None, folder: RunFolder) -> dict[str, Any]:
    """For summary.json, and told: processes that could not be ended, results, checkpoints that stay on a node."""
    found: dict[str, Any] = {}
    if outcome.left:
        found["left"] = [{"host": host, "pid": pid} for host, pid in outcome.left]
        for host, pid in outcome.left:
            click.echo(f"dcu-launch: warning: {host}: process {pid} does not end, not even by KILL", err=True)
    if outcome.saved_step is not None:
        found["saved_step"] = outcome.saved_step
    if outcome.results:
        found["results"] = outcome.results
    if fetched is not None and fetched.checkpoints:
        path = str(folder.path / "checkpoints")
        found["checkpoints"] = {"host": fetched.host, "path": path, "names": list(fetched.checkpoints)}
        click.echo(f"dcu-launch: checkpoints stay on {fetched.host}: {path}")
    return found


def error_of(outcome: Outcome, request: Request) -> LauncherError | None:
    """The error that a run's end amounts to; None when it ended well."""
    if outcome.kind == "stopped":
        how = "at once" if outcome.forced else "after asking the ranks"
        name = outcome.asked_by or signal.Signals(outcome.signal_number).name
        saved, hint = _saved(outcome, request)
        return StoppedError(f"stopped by {name} {how}{saved}", outcome.signal_number, hint)
    if outcome.kind == "interrupted":
        return _interrupted(outcome, request)
    if outcome.kind == "rank_failed":
        from launcher.report.failure import describe_failures, guilty

        culprit = guilty(outcome.failures)
        code = culprit.code if culprit.code is not None else 128 + (culprit.signal or 0)
        return RankFailedError(describe_failures(outcome.failures, request.spec.run_dir), code)
    if outcome.kind == "node_lost":
        lines = "\n".join(f"lost {host}: {why}" for host, why in outcome.lost)
        return NodeLostError(lines, "its agent ends its ranks by itself; look at the node and its network")
    if outcome.kind == "late":
        limit = request.options["start_timeout"]
        return PreflightError(
            f"not all ranks joined within {limit:.0f} s: waiting for {outcome.late}",
            "look at that node's load and disk, or give more time with --start-timeout",
        )
    return None


def _saved(outcome: Outcome, request: Request) -> tuple[str, str]:
    """What a stopped recipe has saved in this attempt, and how to go on; nothing where it has not."""
    if request.spec.recipe is None or not outcome.saved_step:
        return "", ""
    hint = f"the same command with --run-dir {request.spec.run_dir} goes on from the newest checkpoint"
    return f": step {outcome.saved_step} is saved", hint


def _interrupted(outcome: Outcome, request: Request) -> StoppedError:
    """The end that SIGUSR1 asked for: what is saved, and how to go on."""
    saved = f"step {outcome.saved_step} is saved" if outcome.saved_step else "no checkpoint was written"
    if request.spec.recipe is None:
        return StoppedError(
            "ended as SIGUSR1 asked", outcome.signal_number, "what is saved, the script knows"
        )
    hint = f"the same command with --run-dir {request.spec.run_dir} goes on from the newest checkpoint"
    return StoppedError(f"ended as SIGUSR1 asked: {saved}", outcome.signal_number, hint)


def result_error(fetched: Fetched, request: Request) -> ResultError | None:
    """The error that a result amounts to which stays on its node; None when it came, or there was none."""
    if not fetched.failed:
        return None
    lines = [
        f"{name} stays on {fetched.host}: {request.spec.run_dir}/{name}: {why}"
        for name, why in fetched.failed
    ]
    return ResultError("\n".join(lines), "the ranks ended well: copy it from there by hand")


def summarize_error(error: LauncherError) -> dict[str, Any]:
    """summary.json of a run that an error ended."""
    kinds = {2: "usage", 3: "preflight", 4: "unreachable", 5: "node_lost", 70: "bug"}
    kind = kinds.get(error.exit_code, "rank_failed")
    if isinstance(error, StoppedError):
        kind = "interrupted" if error.exit_code == 128 + INTERRUPTING else "stopped"
    return {
        "exit": error.exit_code,
        "origin": "launcher",
        "kind": kind,
        "host": "",
        "rank": None,
        "message": error.message,
        **({"hint": error.hint} if error.hint else {}),
    }


def write_report(folder: RunFolder) -> None:
    """The page of the run into its folder; a page that cannot be made costs no run its end."""
    from launcher.report.language import pick_language
    from launcher.report.page.write import write_own_page

    try:
        path = write_own_page(folder.path, pick_language(None, os.environ))
    except Exception as error:
        click.echo(f"dcu-launch: warning: no report.html: {type(error).__name__}: {error}", err=True)
    else:
        if (folder.path / "metrics.jsonl").exists():
            click.echo(f"dcu-launch: report: {path}")


def show_losses(folder: RunFolder) -> None:
    """The loss curve in the terminal and as loss.png, where there are losses."""
    path = folder.path / "metrics.jsonl"
    if not path.exists():
        return
    from launcher.report.curve import draw_metrics
    from launcher.report.metrics import read_metrics
    from launcher.report.plots import write_loss_png

    rows = read_metrics(path)
    chart = draw_metrics(rows, encoding=sys.stdout.encoding or "ascii")
    if chart:
        click.echo(chart)
    if write_loss_png(rows, folder.path / "loss.png", folder.run):
        click.echo(f"dcu-launch: loss curve: {folder.path / 'loss.png'}")
    sys.stdout.flush()
