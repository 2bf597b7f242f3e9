"""The rules of preflight: reports in, findings out. Pure functions; runs on the head, before a rank starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from launcher.hosts.host import Host
from launcher.preflight.report import NodeReport

#: ranks of recipes import launcher.train, which is written for this
OLDEST_RANK_PYTHON = (3, 10)
RECIPE_STACK = ("torch", "transformers", "peft", "accelerate", "datasets", "safetensors")
COMPARED_PACKAGES = ("torch", "transformers", "peft", "accelerate", "deepspeed")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will go wrong, or may.

    Attributes:
        level: ``error`` (no rank is started), ``warning`` or ``note``.
        code: its name in the docs and for ``--allow``.
        hosts: whom it concerns.
    """

    level: str
    code: str
    hosts: tuple[str, ...]
    message: str
    cure: str = ""

    def to_text(self) -> str:
        """One or two lines for a person."""
        text = f"{self.level} {self.code}: {self.message}"
        return f"{text}\n  cure: {self.cure}" if self.cure else text


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the run asks of each node.

    Attributes:
        recipe: ranks run launcher.train, so its packages are needed.
        workdir: working folder of the ranks.
    """

    recipe: bool
    workdir: str
    hosts: Sequence[Host] = field(default_factory=tuple)


Rule = Callable[[Sequence[NodeReport], Wanted], list[Finding]]


def find_faults(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """All findings of all rules, errors first."""
    order = {"error": 0, "warning": 1, "note": 2}
    findings = [finding for rule in RULES for finding in rule(reports, wanted)]
    return sorted(findings, key=lambda finding: order[finding.level])


def python_usable(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Each node has the interpreter that its ranks need."""
    found = []
    cure = "name one: python=/path/to/python on the hostfile line, --python, or --setup venv:DIR"
    for report in reports:
        if report.python is None and report.python_error:
            found.append(
                Finding(
                    "error", "PYTHON_MISSING", (report.host,), f"{report.host}: {report.python_error}", cure
                )
            )
        elif wanted.recipe and report.python_version and _numbers(report.python_version) < OLDEST_RANK_PYTHON:
            text = f"{report.host}: {report.python} is Python {report.python_version}, recipes need 3.10"
            found.append(Finding("error", "PYTHON_TOO_OLD", (report.host,), text, cure))
    return found


def paths_exist(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Working folder, script, model and data are there on every node."""
    found = []
    for report in reports:
        if report.workdir_exists is False:
            found.append(
                Finding(
                    "error",
                    "WORKDIR_MISSING",
                    (report.host,),
                    f"{report.host} has no folder {wanted.workdir}",
                    "start from a folder that all nodes share, name one with --workdir, or bring it with --sync",
                )
            )
        elif report.missing:
            found.append(
                Finding(
                    "error",
                    "PATH_MISSING",
                    (report.host,),
                    f"{report.host} lacks {', '.join(report.missing)}",
                    "put it there at the same path, or on a disk that all nodes share",
                )
            )
    return found


def run_folder_possible(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A node that does not see the head's run folder can have one of its own at the same path."""
    cure = "name a place that every node can write to: --run-dir"
    return [
        Finding(
            "error",
            "RUN_DIR_NOT_WRITABLE",
            (report.host,),
            f"{report.host}: run folder {report.run_dir_error}",
            cure,
        )
        for report in reports
        if report.run_dir_error
    ]


def stack_installed(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A recipe's ranks find the training stack."""
    if not wanted.recipe:
        return []
    found = []
    for report in reports:
        lacking = [name for name in RECIPE_STACK if name not in report.packages]
        if report.python is not None and lacking:
            found.append(
                Finding(
                    "error",
                    "STACK_MISSING",
                    (report.host,),
                    f"{report.host}: {report.python} lacks {', '.join(lacking)}",
                    "install it there without touching torch (docs/install.md), or name another interpreter with --python",
                )
            )
    return found


def cards_suffice(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """No node is asked for more ranks than it shows cards; nodes without any card run on CPU."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        if host.slots is None or host.devices or not report.card_count or report.usable_cards is None:
            continue
        if report.usable_cards < host.slots:
            why = ", ".join(f"{name}={value}" for name, value in report.visibility.items())
            found.append(
                Finding(
                    "error",
                    "FEWER_CARDS_THAN_SLOTS",
                    (report.host,),
                    f"{report.host} shows {report.usable_cards} cards, the hostfile says {host.slots}"
                    + (f" ({why})" if why else ""),
                    "correct slots= in the hostfile, or the visibility variable on that node",
                )
            )
    return found


def versions_agree(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Python and the training stack are the same on all nodes; a package unknown somewhere is not called equal."""
    found = []
    for name in ("python", *COMPARED_PACKAGES):
        values = {
            report.host: (report.python_version if name == "python" else report.packages.get(name))
            for report in reports
        }
        known = {value for value in values.values() if value is not None}
        if len(known) < 2:
            continue
        counts = sorted(known, key=lambda value: (-list(values.values()).count(value), value))
        others = tuple(host for host, value in values.items() if value is not None and value != counts[0])
        text = f"{name} is {counts[0]} on most nodes, but " + ", ".join(
            f"{host} has {values[host]}" for host in others
        )
        level = "error" if name == "torch" else "warning"
        found.append(Finding(level, "VERSIONS_DIFFER", others, text, "install the same version on all nodes"))
    return found


def interfaces_exist(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A NIC named for a host is there."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        names = {name for name, _ in report.interfaces}
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            value = host.env.get(variable, "")
            if not value or value.startswith("^") or not names:
                continue
            for wish in value.lstrip("=").split(","):
                exact = value.startswith("=") or variable == "GLOO_SOCKET_IFNAME"
                if wish not in names if exact else not any(name.startswith(wish) for name in names):
                    text = f"{report.host} has no interface {wish} ({variable}); it has {', '.join(sorted(names))}"
                    cure = f"correct env.{variable} at {host.source}"
                    found.append(Finding("error", "INTERFACE_MISSING", (report.host,), text, cure))
    return found


RULES: tuple[Rule, ...] = (
    python_usable,
    paths_exist,
    run_folder_possible,
    stack_installed,
    cards_suffice,
    versions_agree,
    interfaces_exist,
)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
