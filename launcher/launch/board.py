"""How each node of a run does at this moment: its ranks' state, its cards, its host. Runs on the head.

In: the supervisor and what nodes say of themselves. Out: rows for the terminal, and ``nodes.json`` of the run folder for
those who watch from elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.launch.order import NodeOrder
from launcher.launch.supervise import Supervisor

NODES_FILE = "nodes.json"
SHOW_EVERY_S, SAVE_EVERY_S = 1.0, 10.0
VISIBILITY = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node at one moment.

    Attributes:
        first_rank, num_ranks: ranks of a node follow one another.
        state: ``starting``, ``loading`` (a recipe's ranks import), ``ready`` (they wait for others), ``running``,
            ``stopping``, ``ended``, ``failed``, ``lost``.
        cards: those of its ranks, as ``launcher/node/smi.py`` describes them; empty on a node without, and before it told.
        cpu_percent, memory_mib, used_mib: of the host; None before it told.
    """

    host: str
    first_rank: int
    num_ranks: int
    state: str
    cards: Sequence[Mapping[str, Any]] = ()
    cpu_percent: float | None = None
    memory_mib: int | None = None
    used_mib: int | None = None


class Board:
    """Shows and saves the rows, each as often as it is worth.

    Args:
        show: takes new rows, about once a second.
        save: takes the text of ``nodes.json``, every ten seconds.
        gauges_every_s: once all ranks are up, nodes tell of their cards so often; 0: never.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        show: Callable[[Sequence[NodeRow]], None],
        save: Callable[[str], None],
        gauges_every_s: float = 0.0,
    ) -> None:
        self._supervisor = supervisor
        self._gauges_every_s = gauges_every_s
        self._show, self._save = show, save
        self._next_show = self._next_save = 0.0

    def tick(self, now: float) -> None:
        """Called some ten times a second."""
        if now < self._next_show:
            return
        self._next_show = now + SHOW_EVERY_S
        if self._gauges_every_s and self._supervisor.is_up:
            self._supervisor.nodes.send_all({"kind": "watch", "every": self._gauges_every_s})
            self._gauges_every_s = 0.0
        rows = node_rows(self._supervisor)
        self._show(rows)
        if now >= self._next_save:
            self._next_save = now + SAVE_EVERY_S
            self._save(json.dumps([asdict(row) for row in rows], ensure_ascii=False) + "\n")


def node_rows(supervisor: Supervisor) -> list[NodeRow]:
    """All nodes, in the order of node ranks."""
    return [_node_row(supervisor, order) for order in supervisor.plan.nodes]


def _node_row(supervisor: Supervisor, order: NodeOrder) -> NodeRow:
    numbers = [rank.rank for rank in order.ranks]
    told = supervisor.nodes.gauges.get(order.node_rank, {})
    return NodeRow(
        order.host,
        numbers[0] if numbers else 0,
        len(numbers),
        _state_of(supervisor, order.node_rank, numbers),
        cards_of(order, told.get("cards", ())),
        told.get("cpu_percent"),
        told.get("memory_mib"),
        told.get("used_mib"),
    )


def _state_of(supervisor: Supervisor, node: int, numbers: Sequence[int]) -> str:
    states = {supervisor.ranks[rank].state for rank in numbers if rank in supervisor.ranks}
    if node in supervisor.nodes.lost:
        return "lost"
    if any(failure.rank in numbers for failure in supervisor.failures):
        return "failed"
    if states == {"ended"}:
        return "ended"
    if supervisor.is_stopping:
        return "stopping"
    if not states or "waiting" in states:
        return "starting"
    if supervisor.spec.recipe is not None and not supervisor.can_save:
        return "loading" if "started" in states else "ready"
    return "running"


def cards_of(order: NodeOrder, cards: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """The cards that the ranks of a node use: those that are named, else the first ones, one a rank."""
    named = next(
        (held[name] for held in (order.variables, order.defaults) for name in VISIBILITY if name in held),
        None,
    )
    if named is not None:
        numbers = [int(word) for word in named.split(",") if word.strip().isdigit()]
        chosen = tuple(card for card in cards if card.get("index") in numbers)
        if chosen:
            return chosen
    return tuple(cards[: max(1, len(order.ranks))])


def read_rows(run_dir: Path) -> list[NodeRow]:
    """``nodes.json``; empty when there is none that can be read."""
    try:
        rows = json.loads((run_dir / NODES_FILE).read_text(encoding="utf-8", errors="replace"))
        return [NodeRow(**row) for row in rows]
    except (OSError, ValueError, TypeError):
        return []
