"""What ``sinfo`` says of a cluster -> the nodes with cards that a first job would go to. Runs on the head; contacts no node."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass

from launcher.base.errors import UsageError
from launcher.hosts.slurm import CARD_GRES
from launcher.slurm.time_limit import parse_time

SINFO_LIMIT_S = 20.0
#: node, partition (* behind the default one), GRES, CPUs, time limit
_FORMAT = "%N|%P|%G|%c|%l"
_GRES = re.compile(r"(\w+)(?::[A-Za-z_][\w.-]*)?:(\d+)")
_LIMIT_S = 12 * 3600


@dataclass(frozen=True, slots=True)
class Cluster:
    """The partition a first job would go to.

    Attributes:
        partition: its name; ``is_default``: whether jobs go there that name none.
        gres: Slurm's name for cards there; empty where it counts none.
        nodes: node -> (cards, CPUs), in Slurm's order.
        time: a limit that the partition takes, as sbatch reads it.
    """

    partition: str
    is_default: bool
    gres: str
    nodes: dict[str, tuple[int, int]]
    time: str

    @property
    def cards(self) -> int:
        """Cards of a node; the fewest, where nodes differ."""
        return min(cards for cards, _ in self.nodes.values())

    @property
    def cpus(self) -> int:
        """CPUs of a node; the fewest, where nodes differ."""
        return min(cpus for _, cpus in self.nodes.values())


def read_cluster() -> Cluster | None:
    """The cluster whose login node this is; None where there is no Slurm, or it does not answer."""
    if shutil.which("sinfo") is None:
        return None
    try:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format", _FORMAT],
            capture_output=True, text=True, errors="replace", timeout=SINFO_LIMIT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_cluster(done.stdout) if done.returncode == 0 else None


def parse_cluster(text: str) -> Cluster | None:
    """The default partition if its nodes have cards, else the one with most such nodes, else the default one."""
    found: dict[str, list[tuple[str, str, int, str]]] = {}
    default = ""
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) != 5 or not fields[3].rstrip("+").isdigit():
            continue
        node, partition, gres, cpus, limit = fields
        default = partition.rstrip("*") if partition.endswith("*") else default
        found.setdefault(partition.rstrip("*"), []).append((node, gres, int(cpus.rstrip("+")), limit))
    if not found:
        return None
    sizes = {name: sum(bool(count_cards(gres)[1]) for _, gres, *_ in rows) for name, rows in found.items()}
    chosen = default if sizes.get(default) else max(sizes, key=lambda name: (sizes[name], name == default))
    return _describe(chosen, chosen == default, found[chosen])


def _describe(partition: str, is_default: bool, rows: Iterable[tuple[str, str, int, str]]) -> Cluster:
    rows = list(rows)
    with_cards = [row for row in rows if count_cards(row[1])[1]]
    nodes = {node: (count_cards(gres)[1], cpus) for node, gres, cpus, _ in with_cards or rows}
    gres = count_cards(with_cards[0][1])[0] if with_cards else ""
    return Cluster(partition, is_default, gres, nodes, _pick_time(rows[0][3]))


def count_cards(gres: str) -> tuple[str, int]:
    """Name and number of cards in a node's GRES: ``dcu:4(S:0-1),gpu:a100:2`` is (dcu, 4); ("", 0) without any."""
    totals: dict[str, int] = {}
    for name, number in _GRES.findall(gres):
        totals[name] = totals.get(name, 0) + int(number)
    return next(((name, totals[name]) for name in CARD_GRES if totals.get(name)), ("", 0))


def _pick_time(limit: str) -> str:
    """12 hours, or the partition's limit where that is shorter."""
    try:
        seconds = parse_time(limit)
    except UsageError:
        return "12:00:00"
    return limit if seconds is not None and seconds < _LIMIT_S else "12:00:00"
