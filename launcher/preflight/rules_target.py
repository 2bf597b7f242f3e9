"""Rules on what is to run: its paths on every node, traps in a script, settings far from what is usual. On the head."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport


def paths_exist(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Working folder, script, model and data are there on every node."""
    found = []
    for report in reports:
        if report.workdir_exists is False:
            text = f"{report.host} has no folder {wanted.workdir}"
            found.append(make_finding("WORKDIR_MISSING", report.host, text))
        elif report.missing:
            relative = any(not path.startswith("/") for path in report.missing)
            where = f" (looked for in {wanted.workdir})" if relative else ""
            text = f"{report.host} lacks {', '.join(report.missing)}{where}"
            found.append(make_finding("PATH_MISSING", report.host, text))
    return found


def run_folder_possible(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A node that does not see the head's run folder can have one of its own at the same path."""
    return [
        make_finding("RUN_DIR_NOT_WRITABLE", report.host, f"{report.host}: run folder {report.run_dir_error}")
        for report in reports
        if report.run_dir_error
    ]


def one_device_a_rank(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """No script spreads a model over all cards of a node in each of several ranks."""
    lines = find_device_map_auto(wanted.script)
    if not lines:
        return []
    hosts = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        ranks = host.slots or wanted.ranks_per_host or report.usable_cards or 1
        if ranks > 1:
            hosts.append(report.host)
    if not hosts:
        return []
    where = ", ".join(f"line {line}" for line in lines)
    text = f'the script says device_map="auto" ({where}): each of several ranks of a node would take all its cards'
    return [make_finding("DEVICE_MAP_AUTO", hosts, text)]


def find_device_map_auto(source: str) -> list[int]:
    """Lines with ``device_map="auto"`` (or another automatic map) as an argument; [] if the text is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    automatic = ("auto", "balanced", "balanced_low_0", "sequential")
    return [
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg == "device_map"
        and isinstance(node.value, ast.Constant)
        and node.value.value in automatic
    ]


def learning_rate_usual(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """The learning rate is near what the method usually takes."""
    if not wanted.recipe or not wanted.config:
        return []
    from launcher.base.config import from_dict
    from launcher.base.learning_rate import warn_learning_rate

    warning = warn_learning_rate(from_dict(dict(wanted.config)))
    hosts = [report.host for report in reports]
    return [make_finding("LEARNING_RATE_UNUSUAL", hosts, warning)] if warning else []
