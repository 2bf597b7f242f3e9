"""How far each rank of a run has come, and how some of them are named to a person. Used by ``supervise``, on the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

WAITING, STARTED, READY, JOINED, ENDED = "waiting", "started", "ready", "joined", "ended"


@dataclass
class RankState:
    """One rank; ``ready``: it has its training stack (recipes alone), ``joined``: it has come to the rendezvous."""

    node: int
    state: str = WAITING


def find_awaited(
    ranks: Mapping[int, RankState], *, is_recipe: bool, go_told: bool, any_met: bool
) -> list[int]:
    """Ranks that others wait for; none for a single rank, or for scripts that never meet."""
    states = {rank: entry.state for rank, entry in ranks.items()}
    if is_recipe and not go_told:
        return [rank for rank, state in states.items() if state in (WAITING, STARTED)]
    never_meet = not is_recipe and not any_met
    if len(states) == 1 or never_meet or ENDED in states.values():
        return []  # a rank that has ended well had met the others, or did not need them
    return [rank for rank, state in states.items() if state != JOINED]


def name_ranks(some: Sequence[int], ranks: Mapping[int, RankState], name: Callable[[int], str]) -> str:
    """``node001 (ranks 0-3), node003 (rank 9)``; ``name``: of a node."""
    nodes = sorted({ranks[rank].node for rank in some})
    return ", ".join(
        f"{name(node)} ({span([rank for rank in some if ranks[rank].node == node])})" for node in nodes
    )


def span(ranks: Sequence[int]) -> str:
    """``rank 3`` or ``ranks 8-15``."""
    ordered = sorted(ranks)
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if ordered and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]}-{ordered[-1]}"
    return "ranks " + ", ".join(map(str, ordered))
