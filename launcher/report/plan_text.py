"""A plan in a few lines for a person: who runs what, how many ranks where, where they meet. Runs on the head."""

from __future__ import annotations

import shlex

import click

from launcher.base.env import printable
from launcher.hosts.target import fold_names
from launcher.launch.order import LaunchPlan, NodeOrder


def show_plan(plan: LaunchPlan) -> None:
    """A few lines for a person on stderr, the whole plan as JSON on stdout."""
    click.echo(describe_plan(plan), nl=False, err=True)
    click.echo(plan.to_json(), nl=False)


def describe_plan(plan: LaunchPlan) -> str:
    """The text; nodes that differ in nothing but their name are folded, and secrets are masked."""
    told = plan.to_dict()
    words = " ".join(shlex.quote(str(word)) for word in told["target"])
    lines = [
        f"{_count(len(plan.nodes), 'node')}, {_ranks(plan.world_size)}: {printable(words)}",
        f"ranks meet at {plan.master_address} port {plan.master_port}",
    ]
    alike: dict[str, list[str]] = {}
    for order in plan.nodes:
        alike.setdefault(_describe_node(order), []).append(order.host)
    # what stands in for a fact of a node names that node
    lines += [
        f"  {fold_names(hosts)}: {text.replace(_ANY, fold_names(hosts))}" for text, hosts in alike.items()
    ]
    if plan.sync:
        lines.append(f"  {plan.sync['folder']} goes to nodes that do not see it, to {plan.sync['target']}")
    folder = plan.nodes[0].log_dir.rpartition("/logs/")[0]
    return "\n".join([*lines, f"run folder {folder}"]) + "\n"


_ANY = "\0"


def _describe_node(order: NodeOrder) -> str:
    parts = [_ranks(order.num_ranks), f"{order.argv[0]}", f"start {order.start}", f"in {order.workdir}"]
    devices = order.variables.get("HIP_VISIBLE_DEVICES") or order.variables.get("CUDA_VISIBLE_DEVICES")
    parts += [f"cards {devices}"] if devices else []
    parts += [f"set-up {', '.join(order.setup)}"] if order.setup else []
    named = [operation["name"] for operation in order.named]
    parts += [f"variables {', '.join(named)}"] if named else []
    parts += [order.binding] if order.binding else []
    return "; ".join(parts).replace(f"<from {order.host}:", f"<from {_ANY}:")


def _ranks(count: int | str) -> str:
    return _count(count, "rank") if isinstance(count, int) else f"{count} ranks"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
