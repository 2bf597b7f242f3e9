"""``dcu-launch check``: preflight alone. Sessions, reports, findings, one table; no rank is started. Runs on the head."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import click

from launcher.base.errors import UnreachableError
from launcher.commands.options import (
    ENV_OPTIONS,
    HOST_OPTIONS,
    REMOTE_OPTIONS,
    RunCommand,
    refuse_empty_value,
    shared_options,
)

SCHEMA_VERSION = 1


@click.command(
    cls=RunCommand,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@shared_options(HOST_OPTIONS)
@click.option("-m", "as_module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.option(
    "--workdir", metavar="DIR", help="Working folder of the ranks on every node; default: this one."
)
@click.option("--python", metavar="PATH", callback=refuse_empty_value, help="Interpreter of the ranks.")
@shared_options(ENV_OPTIONS)
@click.option("--deepspeed", metavar="FILE", help="This file too must be the same on all nodes.")
@click.option(
    "--master-addr", "master_address", metavar="ADDR", help="Address of the first node for the others."
)
@click.option("--master-port", type=click.IntRange(1, 65535), metavar="PORT", help="Default: a free one.")
@click.option("--allow", "allowed", multiple=True, metavar="CODE", help="Do not fail for a finding.")
@click.option(
    "--compat",
    multiple=True,
    metavar="FILE",
    help="A site's own compatibility table (JSON) over the built-in one.",
)
@click.option(
    "--no-torch-check",
    "no_torch_check",
    is_flag=True,
    help="Do not import torch on the nodes: quicker; libraries, cards and arithmetic are then not tried.",
)
@click.option(
    "--ops",
    is_flag=True,
    help="Try each operator of training on each card, forward and backward, against float64.",
)
@click.option(
    "--comm",
    is_flag=True,
    help="Make a correct all-reduce over all ranks, within a limit, and measure its bandwidth.",
)
@click.option(
    "--comm-limit",
    type=click.FloatRange(min=1),
    default=20.0,
    show_default=True,
    metavar="S",
    help="Seconds for the first all-reduce once all ranks are there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead (docs/findings.md).")
@shared_options(REMOTE_OPTIONS)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [ARGS]...")
def check(**options: Any) -> int:
    """Say why a run on these hosts would fail, before it does: versions, libraries, cards, network, files.

    With TARGET, what that recipe or script needs is checked as well. Exit code 3 if there is an error.
    """
    return run_check(options)


def run_check(options: Mapping[str, Any]) -> int:
    """Look at all nodes and tell; returns 0, or 3 when an error is not allowed.

    Raises:
        UnreachableError: some hosts did not answer; what the others said has been shown.
    """
    from launcher.commands.judge import allowed_codes
    from launcher.hosts.host import unique_labels
    from launcher.preflight.comparison import FIELDS, compare

    request = read_check_request(options)
    looked = look_at_nodes(request, options)
    reports, findings, operators = looked.reports, looked.findings, looked.operators
    allowed = allowed_codes(request, is_run=False)
    comparisons = [compare(field, reports) for field in FIELDS]
    hosts = unique_labels(looked.hosts)
    code = 3 if any(finding.level == "error" and finding.code not in allowed for finding in findings) else 0
    code = 4 if looked.unreached else code
    if options["as_json"]:
        told = to_json(hosts, comparisons, findings, allowed, code)
        told["probe_s"] = {host: report.probe_s for host, report in zip(hosts, reports, strict=True)}
        if looked.meeting is not None:
            interfaces = dict(zip(hosts, looked.meeting.interfaces, strict=True))
            told["meeting"] = {"address": looked.meeting.address, "interfaces": interfaces}
        if operators:
            told["operators"] = dict(zip(hosts, operators, strict=True))
        if looked.measured.sizes:
            told["bandwidths"] = looked.measured.sizes
            told["node_bandwidths"] = looked.measured.inside
            told["pair_bandwidths"] = looked.measured.pairs
        if looked.unreached:
            told["unreachable"] = {"hosts": looked.missing_hosts, "message": looked.unreached.message}
        click.echo(json.dumps(told, ensure_ascii=False, indent=1))
        return end_check(code, looked)
    from launcher.report.check_table import ansi_paint, no_paint, show_check
    from launcher.report.operator_table import show_bandwidths, show_operators

    colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    paint = ansi_paint if colored else no_paint
    text = show_check(comparisons, hosts, findings, allowed, paint, looked.missing_hosts)
    measured = looked.measured
    click.echo(
        show_operators(hosts, operators)
        + show_bandwidths(measured.sizes, measured.inside, measured.pairs)
        + show_meeting(looked.meeting)
        + text,
        nl=False,
    )
    return end_check(code, looked)


def show_meeting(meeting: Any) -> str:
    """Where ranks of several nodes would meet, and over which interfaces, in a line; empty for one node."""
    if meeting is None or len(meeting.interfaces) < 2:
        return ""
    names = ", ".join(dict.fromkeys(filter(None, meeting.interfaces)))
    return f"ranks would meet at {meeting.address}{f' over {names}' if names else ''}\n"


def end_check(code: int, looked: Looked) -> int:
    """The exit code, unless hosts are missing that were to be checked: then their error."""
    if looked.unreached is not None:
        raise looked.unreached
    return code


@dataclass(frozen=True, slots=True)
class Looked:
    """Reports of all nodes, all findings, errors first; what nodes said of operators and collectives, if asked.

    Attributes:
        hosts: that answered, in the order of reports.
        meeting: where their ranks would meet, and by which interfaces; None where some do not reach the first one.
        missing_hosts: names of those that did not, and ``unreached`` why.
    """

    hosts: Sequence[Any]
    meeting: Any
    reports: list[Any]
    findings: list[Any]
    operators: list[dict[str, Any]]
    measured: Any
    missing_hosts: list[str]
    unreached: UnreachableError | None


def open_reachable(stack: ExitStack, request: Any) -> tuple[Any, Any, list[str], UnreachableError | None]:
    """Sessions to the hosts that answer: the request for these alone, the nodes, names of the others and their error.

    Raises:
        UnreachableError: none of them does.
    """
    from launcher.commands.execute import open_nodes
    from launcher.launch.signals import signals_to
    from launcher.remote.session import Inbox

    def enter(request: Any) -> Any:
        inbox = Inbox()
        stack.enter_context(signals_to(inbox))
        return stack.enter_context(open_nodes(request, inbox, None))

    try:
        return request, enter(request), [], None
    except UnreachableError as error:
        left = [node for node in range(len(request.hosts)) if node not in error.nodes]
        if not left or not error.nodes:
            raise
        some = replace(
            request,
            hosts=[request.hosts[node] for node in left],
            env_plans=[request.env_plans[node] for node in left],
        )
        # opened anew, since they bear other numbers now, and the first of them is the master
        return some, enter(some), [request.hosts[node].name for node in error.nodes], error


def look_at_nodes(request: Any, options: Mapping[str, Any]) -> Looked:
    """Ask all nodes and judge."""
    from launcher.commands.collectives import Measured, run_collectives
    from launcher.commands.judge import ask_operators, ask_torch, make_reports, read_messages, wanted_of
    from launcher.hosts.host import unique_labels
    from launcher.preflight.rules import find_faults
    from launcher.preflight.rules_operators import judge_operators

    wanted_of(request)  # a table that is wrong is told before any host is reached
    with ExitStack() as stack:
        request, nodes, missing, unreached = open_reachable(stack, request)
        is_open = not (options["words"] or options["as_module"])
        wanted = replace(wanted_of(request, with_config=True), is_open=is_open)
        messages = read_messages(nodes)
        if not options["no_torch_check"]:
            ask_torch(nodes, messages, request.hosts)
        reports = make_reports(messages, request)
        operators = ask_operators(nodes, messages, ()) if options["ops"] else []
        meeting, findings = try_meeting(nodes, request, reports)
        findings += [*find_faults(reports, wanted), *judge_operators(unique_labels(request.hosts), operators)]
        measured = Measured()
        if options["comm"] and meeting is not None:
            measured, failures = run_collectives(nodes, request, reports, meeting, options["comm_limit"])
            findings += failures
    ordered = sort_findings(findings)
    return Looked(request.hosts, meeting, reports, ordered, operators, measured, missing, unreached)


def read_check_request(options: Mapping[str, Any]) -> Any:
    """The request of a run with these options; without TARGET nothing is asked of a node but to work."""
    from launcher.commands.request import read_request
    from launcher.commands.run import run

    usual = run.make_context("check", []).params
    merged = {**usual, **options, "start": "spawn"}
    if options["words"] or options["as_module"]:
        return read_request(merged)
    return read_request({**merged, "words": ("-",), "as_module": True})


def try_meeting(nodes: Any, request: Any, reports: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Where ranks would meet, or None and a finding where a node does not reach the first one."""
    from launcher.base.errors import PreflightError
    from launcher.launch.meeting import arrange_meeting
    from launcher.preflight.finding import make_finding

    try:
        return arrange_meeting(nodes, request.spec, request.hosts, reports, request.spec.master_port), []
    except PreflightError as error:
        blamed = [host.name for host in request.hosts if f"{host.name} cannot reach" in error.message]
        text = error.message.replace("\n", "; ")
        return None, [make_finding("MASTER_UNREACHABLE", blamed or [request.hosts[0].name], text)]


def sort_findings(findings: Sequence[Any]) -> list[Any]:
    """Errors first."""
    from launcher.preflight.finding import LEVELS

    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def to_json(
    hosts: Sequence[str],
    comparisons: Sequence[Any],
    findings: Sequence[Any],
    allowed: frozenset[str],
    code: int,
) -> dict[str, Any]:
    """What ``--json`` prints; its schema is in ``launcher/preflight/data/check.schema.json``."""
    return {
        "version": SCHEMA_VERSION,
        "exit": code,
        "hosts": list(hosts),
        "comparisons": [
            {
                "field": result.field.key,
                "state": result.state,
                "majority": result.majority,
                "values": dict(zip(hosts, result.values, strict=True)),
            }
            for result in comparisons
        ],
        "findings": [{**finding.to_dict(), "allowed": finding.code in allowed} for finding in findings],
    }
