"""What ``init`` writes: texts of a recipe, a hostfile and a batch script. Pure. Runs on the head."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from launcher.slurm.cluster import Cluster

RECIPE_FILE, HOSTS_FILE, SCRIPT_FILE = "dcu-launch.yaml", "hosts.txt", "train.sbatch"
_PLACES = {
    "model": "a folder as transformers saves it, a name on the hub, or demo",
    "data": "a file of rows, or a folder of them, under the same path on every node; or demo",
}
_CPUS_A_CARD = 8


def fill_recipe(text: str, model: str, data: str) -> str:
    """A shipped recipe as ``dcu-launch.yaml``: its own first line, and places for model and rows."""
    lines = text.split("\n")
    head = [
        f"# dcu-launch --hosts {HOSTS_FILE}        reads this file where it is started; key=value words win over it"
    ]
    body = head + (lines[1:] if lines[0].startswith("# dcu-launch ") else lines)
    for section, value in (("data", data), ("model", model)):
        body = _set_path(body, section, value)
    return "\n".join(body)


def _set_path(lines: list[str], section: str, value: str) -> list[str]:
    entry = f"  path: {_quote(value)}".ljust(27) + f"# {_PLACES[section]}"
    start = next((i for i, line in enumerate(lines) if re.match(rf"{section}:\s*(#|$)", line)), None)
    if start is not None:
        rest = lines[start + 1 :]
        end = next((i for i, line in enumerate(rest) if line and not line.startswith((" ", "#"))), len(rest))
        kept = [line for line in rest[:end] if not re.match(r"  path:", line)]
        return [*lines[: start + 1], entry, *kept, *rest[end:]]
    first = next((i for i, line in enumerate(lines) if re.match(r"\w", line)), len(lines))
    return [*lines[:first], f"{section}:", entry, "", *lines[first:]]


def _quote(value: str) -> str:
    plain = re.fullmatch(r"[\w./~-][\w./~@+-]*", value) and not re.fullmatch(
        r"[\d.+-]*|null|true|false|~", value
    )
    return value if plain else json.dumps(value, ensure_ascii=False)


def write_hostfile(cluster: Cluster | None, local_cards: int | None) -> str:
    """A hostfile of this cluster's nodes, or of this machine."""
    head = [
        "# One host a line; the first one is the master. All that may stand here: dcu-launch hosts --example",
    ]
    if cluster is not None:
        head += [
            f"# Nodes of Slurm's partition {cluster.partition}. Within a job dcu-launch takes the job's own nodes and needs no",
            "# hostfile; this one is for nodes that let you in over SSH at any time.",
        ]
        return "\n".join([*head, *_fold_nodes(cluster.nodes)]) + "\n"
    found = f"{local_cards} cards" if local_cards else "no card: ranks on its CPUs"
    head += [
        f"# This machine, {found}. Other hosts that let you in over SSH without a question:",
        f"#   node[01-02] slots={local_cards or 8}",
    ]
    return "\n".join([*head, f"localhost slots={local_cards or 2}"]) + "\n"


def _fold_nodes(nodes: Mapping[str, tuple[int, int]]) -> list[str]:
    from ClusterShell.NodeSet import NodeSet

    by_cards: dict[int, list[str]] = {}
    for name, (cards, _) in nodes.items():
        by_cards.setdefault(cards, []).append(name)
    lines = []
    for cards, names in by_cards.items():
        folded = str(NodeSet.fromlist(names))
        # a comma outside of brackets would be two hosts in one word
        words = [folded] if re.fullmatch(r"[^,\[]*(\[[^\]]*\][^,\[]*)?", folded) else names
        lines += [f"{word} slots={cards or 1}" for word in words]
    return lines


def write_batch_script(cluster: Cluster) -> str:
    """A short batch script for two nodes of the cluster, or for its only one."""
    num_nodes = min(2, len(cluster.nodes))
    lines = [
        "#!/bin/bash",
        "#SBATCH --job-name=train",
        f"#SBATCH --nodes={num_nodes}",
        "#SBATCH --ntasks-per-node=1",
    ]
    lines += [] if cluster.is_default else [f"#SBATCH --partition={cluster.partition}"]
    if cluster.gres:
        lines += [f"#SBATCH --gres={cluster.gres}:{cluster.cards}"]
    lines += [
        f"#SBATCH --cpus-per-task={min(cluster.cpus, _CPUS_A_CARD * max(1, cluster.cards))}",
        f"#SBATCH --time={cluster.time}",
        "#SBATCH --output=train-%j.txt",
        "#SBATCH --open-mode=append",
        "#SBATCH --signal=B:USR1@300",
        "#",
        f"# What {RECIPE_FILE} says, on all cards of {num_nodes} node{'s' if num_nodes > 1 else ''}: sbatch {SCRIPT_FILE}",
        "# 300 s before the limit all ranks save and end (exit code 138); the same sbatch again goes on from there.",
        "",
        f"exec dcu-launch --run-dir runs/train {'' if cluster.gres else '--nproc 1 '}{RECIPE_FILE}",
    ]
    return "\n".join(lines) + "\n"
