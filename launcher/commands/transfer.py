"""Folders between head and nodes: the user's code there before a run, its result here after it. Runs on the head."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from launcher.base.errors import NodeLostError, PreflightError
from launcher.commands.request import Request
from launcher.launch.fetch import RESULTS, Fetched, fetch_results
from launcher.launch.nodes import Nodes
from launcher.launch.order import RunSpec
from launcher.launch.outcome import Outcome
from launcher.preflight.report import NodeReport


def bring_folder(nodes: Nodes, spec: RunSpec) -> None:
    """``--sync``: the folder is in its place on every node afterwards.

    Raises:
        LauncherError: it cannot be packed, or a node cannot take it.
    """
    from launcher.launch.sync import sync_folder

    sync_folder(nodes, Path(spec.sync), spec.sync_target, spec.run_dir, _tell)


def fetch_result(
    nodes: Nodes, request: Request, reports: Sequence[NodeReport], outcome: Outcome
) -> Fetched | None:
    """The result of a run whose first node does not see the run folder; None where there is nothing to fetch.

    After a run that did not end well only the names of its checkpoints are asked for.

    Raises:
        StoppedError: Ctrl-C while it was fetched.
    """
    if reports[0].sees_run_dir is not False or 0 in nodes.lost:
        return None
    run_dir = Path(request.spec.run_dir)
    wanted = RESULTS if outcome.kind == "done" else ()
    try:
        return fetch_results(nodes, 0, run_dir, wanted, _tell)
    except (NodeLostError, PreflightError) as error:
        failed = (("the result", error.message),) if wanted else ()
        return Fetched(nodes.name(0), failed=failed)


def _tell(text: str) -> None:
    click.echo(f"dcu-launch: {text}", err=True)
