"""What ranks reached of a collective -> findings: who did not come, which pair does not reach each other. Pure; on the head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.preflight.finding import Finding, make_finding

STAGES = ("start", "here", "reach", "group", "reduced", "done")
_DOING = {
    "start": "it never came to the meeting point",
    "here": "it was trying to reach the other nodes",
    "reach": "it was making the process group",
    "group": "it was in the first all-reduce",
    "reduced": "it was measuring",
}
#: what one rank says when it was another that failed
_CONSEQUENCE = re.compile(
    r"timed? ?out|Connection closed|Connection reset|closed by peer|Wait timeout", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class RankState:
    """How far a rank came; ``error`` where it failed."""

    rank: int
    host: str
    stage: str = ""
    error: str = ""


def read_states(facts: Sequence[Mapping[str, Any]], ranks: Mapping[int, str]) -> list[RankState]:
    """The last stage of every rank; ``ranks``: rank -> host."""
    stages, errors = dict.fromkeys(ranks, ""), dict.fromkeys(ranks, "")
    for fact in (fact["rank"] for fact in facts if "rank" in fact):
        if "stage" in fact:
            stages[fact["rank"]] = fact["stage"]
        if "failed" in fact:
            hint = f" ({fact['log']})" if fact.get("log") else ""
            errors[fact["rank"]] = fact["failed"] + hint
    return [RankState(rank, host, stages[rank], errors[rank]) for rank, host in ranks.items()]


def judge_collective(
    facts: Sequence[Mapping[str, Any]], ranks: Mapping[int, str], limit_s: float, errors: Mapping[str, str]
) -> list[Finding]:
    """The one finding that explains best; nothing when all ranks came to the end.

    Args:
        errors: of hosts whose process did not end well.
    """
    states = read_states(facts, ranks)
    if all(state.stage == "done" for state in states):
        return []
    for find in (_unreached, _failed, _hung):
        found = find(facts, states, ranks, limit_s)
        if found:
            return found
    text = "; ".join(f"{host}: {error}" for host, error in errors.items() if error) or "no rank said why"
    return [make_finding("COLLECTIVE_FAILED", sorted(errors) or list(dict.fromkeys(ranks.values())), text)]


def _unreached(facts: Any, states: Any, ranks: Mapping[int, str], limit_s: float) -> list[Finding]:
    found = []
    for fact in (fact["rank"] for fact in facts if fact.get("rank", {}).get("unreached")):
        for other, address, why in fact["unreached"]:
            pair = (ranks[fact["rank"]], ranks[other])
            text = f"{pair[0]} does not reach {pair[1]} at {address}: {why}"
            found.append(make_finding("COLLECTIVE_FAILED", pair, text))
    return found


def _failed(facts: Any, states: Sequence[RankState], ranks: Any, limit_s: float) -> list[Finding]:
    causes: dict[tuple[str, str], list[int]] = {}
    for state in states:
        if state.error and not _CONSEQUENCE.search(state.error):
            causes.setdefault((state.host, state.error), []).append(state.rank)
    return [
        make_finding("COLLECTIVE_FAILED", host, f"{_name_ranks(ranks_of)} on {host}: {error}")
        for (host, error), ranks_of in causes.items()
    ]


def _name_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _hung(facts: Any, states: Sequence[RankState], ranks: Any, limit_s: float) -> list[Finding]:
    """Those that came least far: the others wait for them."""
    order = ("", *STAGES)
    least = min((order.index(state.stage) for state in states if state.stage != "done"), default=0)
    late = [state for state in states if order.index(state.stage) == least]
    if len(late) == len(states):
        if not any(state.stage for state in states):
            return []
        text = f"ranks 0-{len(states) - 1}: no answer in {limit_s:.0f} s; all wait for each other in the same place"
        return [make_finding("COLLECTIVE_HUNG", list(dict.fromkeys(ranks.values())), text)]
    return [
        make_finding(
            "COLLECTIVE_HUNG",
            state.host,
            f"rank {state.rank} on {state.host}: no answer in {limit_s:.0f} s; "
            f"{_DOING.get(state.stage, 'it was not started')}",
        )
        for state in late
    ]
