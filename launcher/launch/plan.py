"""Asked, hosts and reports -> LaunchPlan: everything a run will do, as a value. Pure; made on the head.

``make_plan`` is given what is asked (``RunSpec``), the hosts, and what is known of the nodes; before any node was
contacted that is nothing, and what only a node knows stands in the plan as ``<from node01: cards>``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.base.env import DCU_DEFAULTS, EnvPlan
from launcher.base.variable import RANK_DEFAULTS
from launcher.hosts.host import Host, unique_labels
from launcher.launch.binding import RankBinding, bind_ranks
from launcher.launch.order import LaunchPlan, Meeting, NodeOrder, RankOrder, RunSpec

if TYPE_CHECKING:  # --dry-run has no reports, and starts without them
    from launcher.preflight.report import NodeReport

#: replaced by the agent with the folder that holds the head's own code
CODE_FOLDER = "@launcher@"
RECIPE_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from launcher.train.main import main; sys.exit(main())"
)
MAX_OMP_THREADS = 16
CARD_VARIABLES = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


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
        run=spec.name,
        attempt=attempt,
        target=(spec.target, *spec.arguments),
        world_size=world,
        master_address=address,
        master_port=port,
        nodes=tuple(nodes),
        sync={"folder": spec.sync, "target": spec.sync_target} if spec.sync else None,
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
    cards, unset = card_variables(host, report)
    variables.update(cards)
    if spec.uses_deepspeed:
        unset = (*unset, "ACCELERATE_USE_CPU")
    bindings, told = _bindings(spec, host, report, place, cards)
    return NodeOrder(
        node_rank=place.node_rank,
        host=host.name,
        num_ranks=place.num_ranks,
        argv=_argv(spec, host, report),
        ranks=_order_ranks(spec, place, log_dir, bindings),
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
        binding=told,
    )


def _bindings(
    spec: RunSpec, host: Host, report: NodeReport | None, place: _Place, cards: Mapping[str, str]
) -> tuple[list[RankBinding | None], str]:
    """Where each local rank stays, and what to tell of it."""
    if spec.bind != "numa" or not isinstance(place.num_ranks, int):
        return [], ""
    if report is None:
        return [], f"<from {host.name}: NUMA nodes>"
    return bind_ranks(report, host, place.num_ranks, cards)


def _start_method(spec: RunSpec, host: Host, report: NodeReport | None) -> str:
    if spec.start != "auto":
        return spec.start
    if spec.kind != "recipe":
        return "spawn"
    if report is None:
        return f"<from {host.name}: cards>"
    # forking before a card is touched was proved on CPU only
    return "spawn" if report.card_count else "fork"


def _order_ranks(
    spec: RunSpec, place: _Place, log_dir: str, bindings: Sequence[RankBinding | None]
) -> tuple[RankOrder, ...]:
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
        extra = (f"{spec.local_rank_option}={local_rank}",) if spec.local_rank_option else ()
        binding = bindings[local_rank] if bindings else None
        defaults: dict[str, str] = {}
        wanted = None
        if binding is not None:
            wanted = {"node": binding.node, "cpus": binding.cpus, "card": binding.card}
            defaults["OMP_NUM_THREADS"] = str(min(MAX_OMP_THREADS, binding.threads))
            if binding.adapter:
                defaults["UCX_NET_DEVICES"] = binding.adapter
        orders.append(RankOrder(rank, local_rank, variables, extra, defaults, wanted))
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


def card_variables(host: Host, report: NodeReport | None) -> tuple[dict[str, str], tuple[str, ...]]:
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
    defaults = dict(RANK_DEFAULTS)
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
