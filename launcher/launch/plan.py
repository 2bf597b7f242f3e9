"""LaunchPlan: everything a run will do, as a value that prints and saves itself. Pure; made on the head.

``make_plan`` is given what is asked (``RunSpec``), the hosts, and what is known of the nodes; before any node was
contacted that is nothing, and what only a node knows stands in the plan as ``<from node01: cards>``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.base.env import DCU_DEFAULTS, EnvPlan, mask
from launcher.hosts.host import Host
from launcher.hosts.hostfile import unique_labels
from launcher.preflight.report import NodeReport

#: replaced by the agent with the folder that holds the head's own code
CODE_FOLDER = "@launcher@"
RECIPE_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from launcher.train.main import main; sys.exit(main())"
)
MAX_OMP_THREADS = 16
CARD_VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


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
        local_rank_argument: append ``--local_rank=N``.
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
    local_rank_argument: bool = False
    uses_deepspeed: bool = False


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where the ranks meet: the master's address and port, and each node's interface towards it."""

    address: str
    port: int
    interfaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankOrder:
    """One rank of a node."""

    rank: int
    local_rank: int
    variables: Mapping[str, str]
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What one node is to do. ``num_ranks`` is a text while only the node knows it."""

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


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The whole run. ``world_size`` and the master are texts while only nodes know them."""

    run: str
    attempt: int
    target: str
    world_size: int | str
    master_address: str
    master_port: int | str
    nodes: tuple[NodeOrder, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for plan.json, secrets masked."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for node in plain["nodes"]:
            for operations in (node["sent"], node["named"]):
                for operation in operations:
                    operation["value"] = mask(operation["name"], operation["value"])
            for variables in (
                node["variables"],
                node["defaults"],
                *(rank["variables"] for rank in node["ranks"]),
            ):
                for name in variables:
                    variables[name] = mask(name, variables[name])
        return plain

    def to_json(self) -> str:
        """The plan as indented JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2) + "\n"


def make_plan(
    spec: RunSpec,
    hosts: Sequence[Host],
    env_plans: Sequence[EnvPlan],
    reports: Sequence[NodeReport | None],
    meeting: Meeting | None,
    attempt: int = 0,
) -> LaunchPlan:
    """Decide ranks, argv and variables of every node."""
    counts = [count_ranks(spec, host, report) for host, report in zip(hosts, reports, strict=True)]
    known = [count for count in counts if isinstance(count, int)]
    world: int | str = sum(known) if len(known) == len(counts) else "<from nodes: cards>"
    address = meeting.address if meeting else spec.master_address or f"<from {hosts[0].name}: address>"
    if len(hosts) == 1 and not meeting and not spec.master_address:
        address = "127.0.0.1"
    port: int | str = meeting.port if meeting else spec.master_port or f"<from {hosts[0].name}: free port>"
    # the first node's import process hosts the store, on the very socket whose port was agreed on
    hosted = str(_start_method(spec, hosts[0], reports[0]) == "fork" and ":" not in address)
    nodes = []
    first: int | str = 0
    labels = unique_labels(hosts)
    for index, host in enumerate(hosts):
        place = _Place(index, len(hosts), first, counts[index], world, address, port, hosted)
        interface = meeting.interfaces[index] if meeting else ""
        nodes.append(
            _order_node(spec, host, labels[index], env_plans[index], reports[index], place, interface)
        )
        count = counts[index]
        first = first + count if isinstance(first, int) and isinstance(count, int) else "<from nodes: cards>"
    return LaunchPlan(
        spec.name, attempt, " ".join((spec.target, *spec.arguments)), world, address, port, tuple(nodes)
    )


@dataclass(frozen=True, slots=True)
class _Place:
    node_rank: int
    num_nodes: int
    first_rank: int | str
    num_ranks: int | str
    world_size: int | str
    address: str
    port: int | str
    hosted_store: str


def count_ranks(spec: RunSpec, host: Host, report: NodeReport | None) -> int | str:
    """Ranks of a host: its slots; else what was asked for all; else its usable cards; one where there is no card."""
    if host.slots is not None:
        return host.slots
    if spec.ranks_per_host is not None:
        return spec.ranks_per_host
    if report is None or report.usable_cards is None:
        return 1 if report is not None else f"<from {host.name}: cards>"
    return report.usable_cards or 1


def _order_node(
    spec: RunSpec,
    host: Host,
    label: str,
    env_plan: EnvPlan,
    report: NodeReport | None,
    place: _Place,
    interface: str,
) -> NodeOrder:
    log_dir = f"{spec.run_dir}/logs/{label}"
    defaults = _defaults(spec, report, place, interface)
    variables = {
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.num_ranks),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(place.num_nodes),
        "NODE_RANK": str(place.node_rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(place.world_size),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": spec.name,
        "TORCHELASTIC_USE_AGENT_STORE": place.hosted_store,
        **spec.variables,
    }
    cards, unset = _card_variables(host, report)
    variables.update(cards)
    return NodeOrder(
        node_rank=place.node_rank,
        host=host.name,
        num_ranks=place.num_ranks,
        argv=_argv(spec, host, report),
        ranks=_order_ranks(spec, place, log_dir),
        variables=variables,
        defaults=defaults,
        unset=unset,
        sent=tuple(dataclasses.asdict(op) for op in env_plan.sent),
        named=tuple(dataclasses.asdict(op) for op in env_plan.named),
        setup=(*spec.setup, *host.setup),
        workdir=spec.workdir,
        log_dir=log_dir,
        start=_start_method(spec, host, report),
        grace_s=spec.grace_s,
    )


def _start_method(spec: RunSpec, host: Host, report: NodeReport | None) -> str:
    if spec.start != "auto":
        return spec.start
    if spec.kind != "recipe":
        return "spawn"
    if report is None:
        return f"<from {host.name}: cards>"
    # forking before a card is touched was proved on CPU only
    return "spawn" if report.card_count else "fork"


def _order_ranks(spec: RunSpec, place: _Place, log_dir: str) -> tuple[RankOrder, ...]:
    if not isinstance(place.num_ranks, int) or not isinstance(place.first_rank, int):
        return ()
    orders = []
    for local_rank in range(place.num_ranks):
        rank = place.first_rank + local_rank
        variables = {
            "RANK": str(rank),
            "LOCAL_RANK": str(local_rank),
            "ROLE_RANK": str(rank),
            "TORCHELASTIC_ERROR_FILE": f"{log_dir}/rank-{rank:05d}.error.json",
        }
        extra = (f"--local_rank={local_rank}",) if spec.local_rank_argument else ()
        orders.append(RankOrder(rank, local_rank, variables, extra))
    return tuple(orders)


def _argv(spec: RunSpec, host: Host, report: NodeReport | None) -> tuple[str, ...]:
    python = (
        (report.python if report else None) or host.python or spec.python or f"<from {host.name}: python>"
    )
    if spec.kind == "recipe":
        return (python, "-u", "-c", RECIPE_PROGRAM, CODE_FOLDER)
    if spec.kind == "module":
        return (python, "-u", "-m", spec.target, *spec.arguments)
    return (python, "-u", spec.target, *spec.arguments)


def _card_variables(host: Host, report: NodeReport | None) -> tuple[dict[str, str], tuple[str, ...]]:
    """Which cards the ranks see: all that ``devices=`` names, each rank picking its own by local rank."""
    if not host.devices:
        return {}, ()
    listed = ",".join(host.devices)
    kind = report.card_kind if report else None
    if kind in ("dcu", "rocm"):
        # one variable only: HIP reads both, and two of them filter twice
        return {"HIP_VISIBLE_DEVICES": listed}, ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    if kind == "cuda":
        return {"CUDA_VISIBLE_DEVICES": listed}, ()
    return dict.fromkeys(CARD_VARIABLES, listed), ("ROCR_VISIBLE_DEVICES",)


def _defaults(spec: RunSpec, report: NodeReport | None, place: _Place, interface: str) -> dict[str, str]:
    """Variables that hold where the user set nothing."""
    defaults = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "PYTHONUNBUFFERED": "1"}
    if report is not None and report.cpus and isinstance(place.num_ranks, int):
        defaults["OMP_NUM_THREADS"] = str(
            max(1, min(MAX_OMP_THREADS, report.cpus // max(1, place.num_ranks)))
        )
    if place.num_nodes == 1:
        defaults["GLOO_SOCKET_IFNAME"] = "lo"
    elif interface:
        defaults["GLOO_SOCKET_IFNAME"] = interface
        defaults["NCCL_SOCKET_IFNAME"] = "=" + interface
    if report is not None and report.card_kind == "dcu":
        defaults.update(DCU_DEFAULTS)
    if report is not None and not report.card_count and spec.kind != "recipe" and not spec.uses_deepspeed:
        defaults["ACCELERATE_USE_CPU"] = "true"
    return defaults


def node_message(
    order: NodeOrder, spec: RunSpec, attempt: int, stream_all: bool, token: str
) -> dict[str, Any]:
    """The order as the message that goes to the node's agent."""
    recipe = None
    if spec.recipe is not None:
        recipe = {**spec.recipe, "run_dir": spec.run_dir, "run": spec.name, "attempt": attempt}
    return {
        "kind": "order",
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
        "token": token,
    }
