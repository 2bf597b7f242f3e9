"""Which node is slow, from bandwidths inside nodes and between pairs of neighbours."""

from __future__ import annotations

import pytest

from launcher.preflight.rules_bandwidth import judge_bandwidths
from launcher.train.bandwidth import bus_gb_s, pair_rounds

NAMES = ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("count", range(1, 12))
def test_everyone_meets_both_neighbours_once_and_nobody_twice_in_a_round(count):
    rounds = pair_rounds(count)
    assert len(rounds) == (0 if count < 3 else 3 if count % 2 else 2)
    for pairs in rounds:
        nodes = [node for pair in pairs for node in pair]
        assert len(nodes) == len(set(nodes))
    met = sorted(tuple(sorted(pair)) for pairs in rounds for pair in pairs)
    ring = sorted(tuple(sorted((node, (node + 1) % count))) for node in range(count)) if count > 2 else []
    assert met == ring


def pairs_of(count, slow, rate=1.0, usual=10.0):
    return [
        {"hosts": [NAMES[a], NAMES[b]], "bus_gb_s": rate if slow in (a, b) else usual}
        for pairs in pair_rounds(count)
        for a, b in pairs
    ]


@pytest.mark.parametrize("count", [3, 4, 5])
@pytest.mark.parametrize("slow", [0, 1, 2])
def test_who_is_slow_with_both_neighbours_is_the_slow_one(count, slow):
    found = judge_bandwidths({}, pairs_of(count, slow), {NAMES[slow]: "eth1 (10.0.0.3, 1000 Mbit/s)"})
    assert [(finding.code, finding.hosts) for finding in found] == [("NODE_SLOW", (NAMES[slow],))]
    assert found[0].message == (
        f"{NAMES[slow]}: 1 GB/s at best with other nodes over eth1 (10.0.0.3, 1000 Mbit/s), where most reach 10"
    )


def test_nobody_is_slow_where_all_are_alike_or_only_two():
    assert judge_bandwidths({}, pairs_of(4, 2, rate=6.0), {}) == []
    assert judge_bandwidths({"a": 10.0, "b": 1.0}, [], {}) == []


def test_a_node_that_is_slow_inside():
    found = judge_bandwidths({"a": 10.0, "b": 1.0, "c": 11.0}, [], {})
    assert [(finding.hosts, finding.message) for finding in found] == [
        (("b",), "b: 1 GB/s between its own ranks, where most nodes reach 10")
    ]


def test_bus_bandwidth_is_counted_as_rccl_tests_does():
    assert bus_gb_s(8, 8_000_000_000, 2.0) == pytest.approx(7.0)
