"""What a run and each of its nodes is to do, as records. Made by ``plan`` on the head; saved, printed, sent to agents."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.base.env import mask, mask_words


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What the command line asks for.

    Attributes:
        kind: ``recipe``, ``script`` or ``module``.
        target: recipe file, script or module name, as given.
        arguments: for scripts and modules, byte for byte.
        recipe: the resolved recipe with its hash, for ranks; None for scripts.
        run_dir: absolute path of the run folder.
        ranks_per_host: ranks on hosts whose line has no ``slots``; None: a card each.
        python: interpreter named for all hosts.
        start: ``spawn``, ``fork``, or ``auto``: recipes fork on nodes without cards, everything else spawns.
        modules: what the import process loads before it forks.
        grace_s: seconds between TERM and KILL when asked to stop.
        variables: further variables of the launcher's own, such as Accelerate's for DeepSpeed.
        local_rank_option: append it as ``--local_rank=N``; empty: nothing.
        uses_deepspeed: never tell Accelerate to use the CPU: it would train without DeepSpeed.
        files: paths that every node must have, besides the target.
        sync: folder of the head that is brought to nodes which do not see it; empty: none.
        sync_target: its place on the nodes.
        bind: ``numa``: each rank stays on the NUMA node of its card; ``none``: wherever the system puts it.
    """

    name: str
    kind: str
    target: str
    arguments: tuple[str, ...]
    workdir: str
    run_dir: str
    recipe: Mapping[str, Any] | None = None
    ranks_per_host: int | None = None
    python: str | None = None
    setup: tuple[str, ...] = ()
    master_address: str | None = None
    master_port: int | None = None
    start: str = "auto"
    modules: tuple[str, ...] = ()
    grace_s: float = 30.0
    variables: Mapping[str, str] = field(default_factory=dict)
    local_rank_option: str = ""
    uses_deepspeed: bool = False
    files: tuple[str, ...] = ()
    bind: str = "none"
    sync: str = ""
    sync_target: str = ""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks meet: the master's address and port, and each node's interface towards it."""

    address: str
    port: int
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank of a node.

    Attributes:
        defaults: hold where the user set nothing, for this rank before those of its node.
        binding: ``node`` and ``cpus`` of the NUMA node it stays on; None: no binding.
    """

    rank: int
    local_rank: int
    variables: Mapping[str, str]
    arguments: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)
    binding: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What one node is to do. ``num_ranks`` and ``binding`` (told to the user) are texts while only the node knows."""

    node_rank: int
    host: str
    num_ranks: int | str
    argv: tuple[str, ...]
    ranks: tuple[RankOrder, ...]
    variables: Mapping[str, str]
    defaults: Mapping[str, str]
    unset: tuple[str, ...]
    sent: tuple[Mapping[str, Any], ...]
    named: tuple[Mapping[str, Any], ...]
    setup: tuple[str, ...]
    workdir: str
    log_dir: str
    start: str
    grace_s: float
    binding: str = ""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The whole run. ``world_size`` and the master are texts while only nodes know them.

    Attributes:
        target: recipe, script or module with its arguments, as given.
        sync: ``folder`` of the head and its ``target`` on nodes that do not see it; None: nothing is brought.
    """

    run: str
    attempt: int
    target: tuple[str, ...]
    world_size: int | str
    master_address: str
    master_port: int | str
    nodes: tuple[NodeOrder, ...]
    sync: Mapping[str, str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for plan.json, secrets masked."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        plain["target"] = mask_words(plain["target"])
        for node in plain["nodes"]:
            node["argv"] = mask_words(node["argv"])
            for operations in (node["sent"], node["named"]):
                for operation in operations:
                    operation["value"] = mask(operation["name"], operation["value"])
            ranks = [part for rank in node["ranks"] for part in (rank["variables"], rank["defaults"])]
            for variables in (node["variables"], node["defaults"], *ranks):
                for name in variables:
                    variables[name] = mask(name, variables[name])
        return plain

    def to_json(self) -> bytes:
        """The plan as indented JSON in UTF-8; bytes of arguments that are no text come out as they went in."""
        text = json.dumps(self.to_dict(), ensure_ascii=False, indent=2) + "\n"
        return text.encode("utf-8", "surrogateescape")


def node_message(order: NodeOrder, spec: RunSpec, attempt: int, stream_all: bool) -> dict[str, Any]:
    """The order as the message that goes to the node's agent."""
    recipe = None
    if spec.recipe is not None:
        recipe = {**spec.recipe, "run_dir": spec.run_dir, "run": spec.name, "attempt": attempt}
    return {
        "kind": "order",
        "grace": spec.grace_s,
        "argv": list(order.argv),
        "ranks": [dataclasses.asdict(rank) for rank in order.ranks],
        "variables": dict(order.variables),
        "defaults": dict(order.defaults),
        "unset": list(order.unset),
        "workdir": order.workdir,
        "log_dir": order.log_dir,
        "start": order.start,
        "target": {"kind": spec.kind, "name": spec.target, "arguments": list(spec.arguments)},
        "host_store": order.node_rank == 0 and order.variables["TORCHELASTIC_USE_AGENT_STORE"] == "True",
        "stream_all": stream_all,
        "recipe": recipe,
    }
