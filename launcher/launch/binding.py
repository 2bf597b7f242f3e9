"""``--bind numa``: which rank stays on which NUMA node, decided from what the nodes' probes read. Pure; runs on the head.

A rank belongs to the NUMA node of its card; without cards the ranks are spread over the nodes in equal blocks. Nothing is
assumed: where a card, its NUMA node or its number is unknown, the ranks stay unbound, and a remark says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.hosts.host import Host

if TYPE_CHECKING:  # --dry-run has no reports, and starts without them
    from launcher.preflight.report import NodeReport


@dataclass(frozen=True, slots=True)
class RankBinding:
    """Where one rank stays.

    Attributes:
        node: NUMA node.
        cpus: its CPUs, as ``0-31,64-95``.
        card: PCI address of the rank's card; empty without one.
        adapter: the network adapter on that NUMA node for UCX, as ``mlx5_0:1``; empty where there is no choice to make.
        threads: CPUs for each rank on that NUMA node.
    """

    node: int
    cpus: str
    card: str
    adapter: str
    threads: int


def bind_ranks(
    report: NodeReport, host: Host, num_ranks: int, card_variables: Mapping[str, str]
) -> tuple[list[RankBinding | None], str]:
    """A binding for each local rank, and what is to be told of this node.

    Args:
        card_variables: what the plan sets to choose the cards that ranks see.
    """
    topology = report.topology
    if not topology or not topology.get("nodes"):
        return [None] * num_ranks, "not bound: this node tells nothing of its NUMA nodes"
    nodes = {int(number): str(cpus) for number, cpus in topology["nodes"].items()}
    if report.card_count:
        places, why = _places_of_cards(report, host, num_ranks, card_variables, nodes)
    else:
        ordered = sorted(nodes)
        places = [(ordered[rank * len(ordered) // num_ranks], "") for rank in range(num_ranks)]
        why = ""
    bindings = _make_bindings(places, nodes, topology.get("adapters") or [])
    return bindings, _describe(bindings, why)


_Place = tuple[int, str]


def _places_of_cards(
    report: NodeReport,
    host: Host,
    num_ranks: int,
    card_variables: Mapping[str, str],
    nodes: Mapping[int, str],
) -> tuple[list[_Place | None], str]:
    """NUMA node and PCI address of each local rank's card."""
    nowhere: list[_Place | None] = [None] * num_ranks
    cards = _find_cards(report)
    if not cards:
        return nowhere, "its cards cannot be told apart"
    visible = visible_cards(report, host, card_variables)
    if visible is None:
        return nowhere, "the variables that choose its cards do not name them by number"
    if num_ranks > len(visible):
        return nowhere, f"{num_ranks} ranks share {len(visible)} cards"
    places: list[_Place | None] = []
    for number in visible[:num_ranks]:
        node, address = cards[number]
        if node is None and len(nodes) == 1:
            (node,) = nodes  # firmware of machines with one NUMA node often does not name it
        places.append((node, address) if node is not None and node in nodes else None)
    unknown = [cards[number][1] for number, place in zip(visible, places, strict=False) if place is None]
    return places, f"the NUMA node of card {', '.join(unknown)} is unknown" if unknown else ""


def _find_cards(report: NodeReport) -> list[tuple[int | None, str]]:
    """NUMA node and address of each card by its number: as the kernel says, else as hy-smi or nvidia-smi do; or nothing."""
    kernel = (report.topology or {}).get("cards") or []
    if kernel and len(kernel) == report.card_count:
        return [(card["node"], str(card["address"])) for card in kernel]
    told = sorted(report.cards, key=lambda card: card.index)
    if [card.index for card in told] == list(range(report.card_count or 0)):
        return [(card.numa, card.pci or str(card.index)) for card in told]
    return []


def visible_cards(report: NodeReport, host: Host, card_variables: Mapping[str, str]) -> list[int] | None:
    """Numbers of the cards that ranks see, in their order; None where the variables do not say it by number."""
    variables = {**report.visibility, **card_variables}
    if host.devices:
        variables = dict(card_variables)
    # ROCR_VISIBLE_DEVICES filters first, below HIP; HIP reads CUDA_VISIBLE_DEVICES where its own variable is missing
    seen = list(range(report.card_count or 0))
    hip = "HIP_VISIBLE_DEVICES" if variables.get("HIP_VISIBLE_DEVICES") else "CUDA_VISIBLE_DEVICES"
    order = ("CUDA_VISIBLE_DEVICES",) if report.card_kind == "cuda" else ("ROCR_VISIBLE_DEVICES", hip)
    for name in order:
        words = [word.strip() for word in variables.get(name, "").split(",") if word.strip()]
        if name not in variables:
            continue
        if not all(word.isdigit() and int(word) < len(seen) for word in words):
            return None
        seen = [seen[int(word)] for word in words]
    return seen


def _make_bindings(
    places: Sequence[_Place | None], nodes: Mapping[int, str], adapters: Sequence[Mapping[str, Any]]
) -> list[RankBinding | None]:
    known = [place[0] for place in places if place is not None]
    # with one adapter, or where one's place is unknown, there is nothing to choose by
    choosing = len(adapters) > 1 and all(adapter["node"] is not None for adapter in adapters)
    bindings: list[RankBinding | None] = []
    for local_rank, place in enumerate(places):
        if place is None:
            bindings.append(None)
            continue
        node, card = place
        near = [adapter for adapter in adapters if choosing and adapter["node"] == node]
        turn = sum(1 for other in places[:local_rank] if other is not None and other[0] == node)
        adapter = near[turn % len(near)] if near else None
        bindings.append(
            RankBinding(
                node=node,
                cpus=nodes[node],
                card=card,
                adapter=f"{adapter['name']}:{adapter['port']}" if adapter else "",
                threads=max(1, _count(nodes[node]) // known.count(node)),
            )
        )
    return bindings


def _count(cpus: str) -> int:
    ends = [part.partition("-") for part in cpus.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _describe(bindings: Sequence[RankBinding | None], why: str) -> str:
    if all(binding is None for binding in bindings):
        return f"not bound: {why}"
    shown = " ".join("-" if binding is None else str(binding.node) for binding in bindings)
    if len(bindings) == 1:
        return f"local rank 0 on NUMA node {shown}"
    return f"local ranks 0-{len(bindings) - 1} on NUMA nodes {shown}" + (
        f" (-: not bound, {why})" if why else ""
    )
