"""Bandwidths inside nodes and between pairs of them -> the node that is far slower than others. Pure; runs on the head."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.preflight.finding import Finding, make_finding

#: of what the middle one of all nodes reaches: below it a node is told as slow
SLOW_SHARE = 0.5
#: of two nodes nobody can say which is the slow one
MIN_NODES = 3


def judge_bandwidths(
    inside: Mapping[str, float], pairs: Sequence[Mapping[str, Any]], links: Mapping[str, str]
) -> list[Finding]:
    """NODE_SLOW for a node that is slow inside, or with every node that it was paired with.

    Args:
        inside: host -> GB/s between its own ranks.
        pairs: ``hosts`` and ``bus_gb_s`` of each pair.
        links: host -> by which interface it talks to others, in words.
    """
    best: dict[str, float] = {}
    for pair in pairs:
        for host in pair["hosts"]:
            best[host] = max(best.get(host, 0.0), pair["bus_gb_s"])
    found = []
    for host, usual in _find_slow(best).items():
        over = f" over {links[host]}" if links.get(host) else ""
        text = f"{host}: {best[host]:.3g} GB/s at best with other nodes{over}, where most reach {usual:.3g}"
        found.append(make_finding("NODE_SLOW", host, text))
    for host, usual in _find_slow(inside).items():
        text = f"{host}: {inside[host]:.3g} GB/s between its own ranks, where most nodes reach {usual:.3g}"
        cure = "compare hy-smi --showtopo, clocks and other load of that node with another one's"
        found.append(make_finding("NODE_SLOW", host, text, cure=cure))
    return found


def _find_slow(figures: Mapping[str, float]) -> dict[str, float]:
    """Hosts far below the middle of all, with that."""
    if len(figures) < MIN_NODES:
        return {}
    usual = statistics.median(figures.values())
    return {host: usual for host, figure in figures.items() if figure < SLOW_SHARE * usual}
