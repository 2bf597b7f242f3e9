"""Reports of all nodes, and what preflight says to them: shared by a run and by ``dcu-launch check``. Runs on the head."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from launcher.base.env import DCU_DEFAULTS
from launcher.base.errors import PreflightError
from launcher.commands.request import Request
from launcher.hosts.host import Host
from launcher.launch.clocks import measure_clocks
from launcher.launch.nodes import Nodes
from launcher.launch.plan import card_variables
from launcher.launch.run_folder import RunFolder
from launcher.preflight.codes import NEVER_ALLOWED
from launcher.preflight.compat import read_site_table
from launcher.preflight.report import NodeReport, read_report
from launcher.preflight.rules import Finding, Wanted, find_faults
from launcher.preflight.torch_told import merge_torch_facts

PREPARE_LIMIT_S = 120.0
TORCH_LIMIT_S = 120.0
#: many small cases, one that compiles among them
OPERATORS_LIMIT_S = 900.0
WAITING_EVERY_S = 5.0


def read_messages(nodes: Nodes) -> list[dict[str, Any]]:
    """What each node's probe says, with its clock, in the order of node ranks."""
    clocks = measure_clocks(nodes)
    told = [time.monotonic()]

    def waiting(names: list[str]) -> None:
        if time.monotonic() - told[0] > WAITING_EVERY_S:
            told[0] = time.monotonic()
            click.echo(f"dcu-launch: waiting for the report of {fold(names)}", err=True)

    answers = nodes.collect("report", list(range(len(nodes))), PREPARE_LIMIT_S, waiting)
    return [{**answers[node]["report"], "clock": clocks[node]} for node in range(len(nodes))]


def read_reports(nodes: Nodes, request: Request) -> list[NodeReport]:
    """One report of each node, in the order of node ranks."""
    return make_reports(read_messages(nodes), request)


def make_reports(messages: Sequence[Mapping[str, Any]], request: Request) -> list[NodeReport]:
    """The records of messages."""
    return [read_report(host.name, message) for host, message in zip(request.hosts, messages, strict=True)]


def ask_torch(nodes: Nodes, messages: Sequence[dict[str, Any]], hosts: Sequence[Host]) -> None:
    """Have a process on each node that has torch import it, and add what it said to the node's message."""
    asked = [
        node
        for node, message in enumerate(messages)
        if "torch" in (message.get("python") or {}).get("packages", ())
    ]
    for node in asked:
        nodes.send(node, torch_question(read_report("", messages[node]), hosts[node]))
    for node, answer in nodes.collect("looked", asked, TORCH_LIMIT_S + 10).items():
        messages[node]["torch"] = merge_torch_facts(answer["facts"], answer["error"])


def torch_question(report: NodeReport, host: Host, *arguments: str) -> dict[str, Any]:
    """Have torch looked at with the cards in sight that ranks get.

    Args:
        arguments: ``gently``: the process stands beside ranks, leaves the processors to them, and ends with them.
    """
    variables, unset = card_variables(host, report)
    return {
        "kind": "look_deeper",
        "what": "torch",
        "python": report.python,
        "arguments": list(arguments),
        "limit": TORCH_LIMIT_S,
        "defaults": dict(DCU_DEFAULTS) if report.is_dcu else {},
        "variables": variables,
        "unset": list(unset),
        "beside_ranks": "gently" in arguments,
    }


def ask_operators(
    nodes: Nodes, messages: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Have each node that has torch try the operators of training on its cards; of each node rows, choices, error."""
    asked = [
        node
        for node, message in enumerate(messages)
        if "torch" in (message.get("python") or {}).get("packages", ())
    ]
    for node in asked:
        is_dcu = read_report("", messages[node]).is_dcu
        nodes.send(
            node,
            {
                "kind": "look_deeper",
                "what": "operators",
                "python": messages[node]["python"]["path"],
                "arguments": list(names),
                "limit": OPERATORS_LIMIT_S,
                "defaults": dict(DCU_DEFAULTS) if is_dcu else {},
            },
        )
    answers = nodes.collect("looked", asked, OPERATORS_LIMIT_S + 10)
    found = []
    for node in range(len(messages)):
        facts = answers[node]["facts"] if node in answers else []
        found.append(
            {
                "rows": [fact["operator"] for fact in facts if "operator" in fact],
                "choices": [fact["choice"] for fact in facts if "choice" in fact],
                "error": answers[node]["error"] if node in answers else "no torch",
            }
        )
    return found


def wanted_of(request: Request, with_config: bool = False) -> Wanted:
    """What the rules need to know of the request.

    Args:
        with_config: also look at the recipe's settings, of which the ranks of a run speak themselves.
    """
    spec = request.spec
    script = ""
    if spec.kind == "script":
        try:
            script = Path(spec.target).read_text(encoding="utf-8", errors="replace")
        except OSError:
            script = ""  # that a node lacks it is another rule's finding
    compat = [read_site_table(path) for path in request.options.get("compat", ())]
    return Wanted(
        recipe=spec.kind == "recipe",
        workdir=spec.workdir,
        hosts=request.hosts,
        script=script,
        ranks_per_host=spec.ranks_per_host,
        compat=compat,
        config=(spec.recipe or {}).get("config", {}) if with_config else {},
    )


def judge(request: Request, reports: Sequence[NodeReport], folder: RunFolder | None = None) -> list[Finding]:
    """Show what preflight found, and return it; an error that is not allowed ends the run here.

    Raises:
        PreflightError: at least one error.
    """
    findings = find_faults(reports, wanted_of(request))
    allowed = allowed_codes(request, folder is not None)
    if folder is not None:
        save_preflight(folder, findings, allowed)
        hosts = [_describe(host, report) for host, report in zip(request.hosts, reports, strict=True)]
        folder.write_json("hosts.json", hosts)
    errors = [finding for finding in findings if finding.level == "error" and finding.code not in allowed]
    for finding in findings:
        # notes are for who asks: check shows them, and the run folder has them
        if finding not in errors and finding.level != "note":
            click.echo(f"dcu-launch: {finding.to_text(is_allowed=finding.code in allowed)}", err=True)
    for report in reports:
        if report.orphans:
            text = f"{report.host}: ended {len(report.orphans)} processes that an earlier run had left"
            click.echo(f"dcu-launch: {text}", err=True)
    if errors:
        raise refuse(errors)
    return findings


def save_preflight(
    folder: RunFolder,
    findings: Sequence[Finding],
    allowed: frozenset[str],
    torch: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """preflight.json: all findings, which codes may pass, and what torch said on each host that was heard."""
    rows = [{**finding.to_dict(), "allowed": finding.code in allowed} for finding in findings]
    folder.write_json("preflight.json", {"findings": rows, "allowed": sorted(allowed), "torch": dict(torch)})


def allowed_codes(request: Request, is_run: bool) -> frozenset[str]:
    """Codes that may pass."""
    allowed = set(request.options["allowed"])
    if request.spec.sync and not is_run:
        allowed |= {"WORKDIR_MISSING", "PATH_MISSING"}  # a run would have brought them
    return frozenset(allowed)


def refuse(errors: Sequence[Finding]) -> PreflightError:
    """The refusal: every error, then each cure once."""
    cures = list(dict.fromkeys(finding.cure for finding in errors if finding.cure))
    codes = list(dict.fromkeys(finding.code for finding in errors))
    if NEVER_ALLOWED.isdisjoint(codes):
        cures.append("or let it pass: " + " ".join(f"--allow {code}" for code in codes))
    return PreflightError(
        "\n".join(f"{finding.code}: {finding.message}" for finding in errors),
        "\n".join(cures),
    )


def _describe(host: Any, report: NodeReport) -> dict[str, Any]:
    return {
        "name": host.name,
        "source": host.source,
        "hostname": report.hostname,
        "python": report.python,
        "python_version": report.python_version,
        "packages": dict(report.packages),
        "card_kind": report.card_kind,
        "card_count": report.card_count,
        "cards": [dataclasses.asdict(card) for card in report.cards],
        "driver": report.driver.version,
        "dtk": report.dtk.version,
        "dtk_root": report.dtk.root,
        "libraries": {
            kind: {"path": library.path, "version": library.version}
            for kind, library in report.libraries.items()
        },
        "kernel": report.system.kernel,
        "clock_offset_s": report.system.clock_offset_s,
        "interfaces": [list(entry) for entry in report.interfaces],
        "adapters": None if report.hcas is None else dict(report.hcas),
        "setup": list(report.setup),
        "sees_run_dir": report.sees_run_dir,
        "unknown": dict(report.unknown),
    }


def fold(names: Sequence[str]) -> str:
    """``node[01-07]`` for node01 ... node07."""
    from launcher.hosts.target import fold_names

    return fold_names(names)
