"""The pipeline of a run, step by step; each step is a function fed by the one before. Runs on the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from launcher.base.errors import UsageError
from launcher.commands.request import read_request
from launcher.launch.plan import make_plan


def run_pipeline(options: Mapping[str, Any]) -> int:
    """Hostfile to ended ranks. Returns the exit code.

    Raises:
        LauncherError: anything that kept ranks from starting; nothing is left behind.
    """
    if options["detach"] and (options["dry_run"] or options["dry_run_nodes"]):
        raise UsageError("--detach: a dry run starts nothing that could go on")
    request = read_request(options)
    for remark in request.remarks:
        click.echo(f"dcu-launch: {remark}", err=True)
    if options["dry_run"] and not options["dry_run_nodes"]:
        plan = make_plan(request.spec, request.hosts, request.env_plans, [None] * len(request.hosts), None)
        from launcher.report.plan_text import show_plan

        show_plan(plan)
        return 0
    from launcher.commands.execute import execute

    return execute(request, only_plan=options["dry_run_nodes"])
