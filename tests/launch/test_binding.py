"""Which rank stays on which NUMA node: recorded hosts, visible cards, nodes without cards, everything unknown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from launcher.hosts.host import Host
from launcher.launch.binding import bind_ranks, visible_cards
from launcher.node.numa import read_topology
from launcher.preflight.facts import Card
from launcher.preflight.report import NodeReport
from tests.node.sysfs import HOSTS, add_adapters, add_kfd_cards, add_nodes, pci_address

HOST = Host("node01")


def report(root: Path, *, cards: int, kind: str = "dcu", **visibility: str) -> NodeReport:
    topology = read_topology(str(root), set(range(1024)))
    return NodeReport("node01", card_kind=kind, card_count=cards, topology=topology, visibility=visibility)


def nodes_of(bindings) -> list[int | None]:
    return [None if binding is None else binding.node for binding in bindings]


@pytest.mark.parametrize("name", HOSTS)
def test_each_rank_stays_with_its_card(tmp_path: Path, name):
    add_nodes(tmp_path, 8)
    add_kfd_cards(tmp_path, HOSTS[name])
    bindings, told = bind_ranks(report(tmp_path, cards=8), HOST, 8, {})
    assert nodes_of(bindings) == list(HOSTS[name])
    assert [binding.card for binding in bindings] == [pci_address(card) for card in range(8)]
    assert told == "local ranks 0-7 on NUMA nodes " + " ".join(map(str, HOSTS[name]))


def test_cpus_and_threads_are_those_of_the_node(tmp_path: Path):
    add_nodes(tmp_path, 2, cpus_a_node=8)
    add_kfd_cards(tmp_path, (1, 1, 1, 0))
    bindings, _ = bind_ranks(report(tmp_path, cards=4), HOST, 4, {})
    assert [(binding.cpus, binding.threads) for binding in bindings] == [("8-15,24-31", 5)] * 3 + [
        ("0-7,16-23", 16)
    ]


@pytest.mark.parametrize(
    ("visibility", "card_variables", "devices", "seen"),
    [
        ({}, {}, (), [3, 1, 1, 0]),
        ({"HIP_VISIBLE_DEVICES": "3,0"}, {}, (), [0, 3]),
        ({"CUDA_VISIBLE_DEVICES": "2, 3"}, {}, (), [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "0,1"}, {}, (), [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "2,3", "HIP_VISIBLE_DEVICES": "1,0"}, {}, (), [0, 1]),
        ({"HIP_VISIBLE_DEVICES": "0"}, {"HIP_VISIBLE_DEVICES": "2,3"}, ("2", "3"), [1, 0]),
        ({"ROCR_VISIBLE_DEVICES": "1"}, {"HIP_VISIBLE_DEVICES": "3"}, ("3",), [0]),
    ],
)
def test_cards_that_ranks_see(tmp_path: Path, visibility, card_variables, devices, seen):
    add_nodes(tmp_path, 8)
    add_kfd_cards(tmp_path, (3, 1, 1, 0))
    host = Host("node01", devices=devices)
    bindings, _ = bind_ranks(report(tmp_path, cards=4, **visibility), host, len(seen), card_variables)
    assert nodes_of(bindings) == seen


def test_cuda_reads_its_own_variable_alone(tmp_path: Path):
    facts = report(tmp_path, cards=4, kind="cuda", CUDA_VISIBLE_DEVICES="3,2", HIP_VISIBLE_DEVICES="0")
    assert visible_cards(facts, HOST, {}) == [3, 2]


@pytest.mark.parametrize("value", ["GPU-1234", "0,7", "-1"])
def test_cards_not_named_by_number_are_not_guessed(tmp_path: Path, value):
    add_nodes(tmp_path, 2)
    add_kfd_cards(tmp_path, (0, 1))
    bindings, told = bind_ranks(report(tmp_path, cards=2, HIP_VISIBLE_DEVICES=value), HOST, 2, {})
    assert nodes_of(bindings) == [None, None]
    assert told == "not bound: the variables that choose its cards do not name them by number"


def test_without_cards_ranks_are_spread_in_blocks(tmp_path: Path):
    add_nodes(tmp_path, 2)
    facts = report(tmp_path, cards=0, kind="cpu")
    for num_ranks, nodes in ((1, [0]), (2, [0, 1]), (3, [0, 0, 1]), (5, [0, 0, 0, 1, 1])):
        assert nodes_of(bind_ranks(facts, HOST, num_ranks, {})[0]) == nodes


def test_cards_that_only_a_tool_lists(tmp_path: Path):
    add_nodes(tmp_path, 8)
    told = tuple(Card(index, numa=node, pci=pci_address(index)) for index, node in enumerate(HOSTS["bw1000"]))
    bindings, _ = bind_ranks(replace(report(tmp_path, cards=8), cards=told[::-1]), HOST, 8, {})
    assert nodes_of(bindings) == list(HOSTS["bw1000"])
    assert bindings[0].card == pci_address(0)
    gap = replace(report(tmp_path, cards=8), cards=told[:7])
    assert bind_ranks(gap, HOST, 8, {})[1] == "not bound: its cards cannot be told apart"
    silent = replace(report(tmp_path, cards=8), cards=tuple(Card(index) for index in range(8)))
    assert nodes_of(bind_ranks(silent, HOST, 8, {})[0]) == [None] * 8


def test_unknown_nodes_of_single_cards(tmp_path: Path):
    add_nodes(tmp_path, 2)
    add_kfd_cards(tmp_path, (1, -1, 5))  # node 5 has no CPU that ranks may use
    bindings, told = bind_ranks(report(tmp_path, cards=3), HOST, 3, {})
    assert nodes_of(bindings) == [1, None, None]
    cards = f"{pci_address(1)}, {pci_address(2)}"
    assert (
        told
        == f"local ranks 0-2 on NUMA nodes 1 - - (-: not bound, the NUMA node of card {cards} is unknown)"
    )


def test_one_numa_node_is_everybodys(tmp_path: Path):
    add_nodes(tmp_path, 1)
    add_kfd_cards(tmp_path, (-1, -1))
    bindings, told = bind_ranks(report(tmp_path, cards=2), HOST, 2, {})
    assert nodes_of(bindings) == [0, 0]
    assert told == "local ranks 0-1 on NUMA nodes 0 0"
    assert bind_ranks(report(tmp_path, cards=2), HOST, 1, {})[1] == "local rank 0 on NUMA node 0"


@pytest.mark.parametrize(
    ("cards", "num_ranks", "why"),
    [(8, 2, "its cards cannot be told apart"), (2, 4, "4 ranks share 2 cards")],
)
def test_no_binding_where_card_and_rank_do_not_match(tmp_path: Path, cards, num_ranks, why):
    add_nodes(tmp_path, 2)
    add_kfd_cards(tmp_path, (0, 1))
    bindings, told = bind_ranks(report(tmp_path, cards=cards), HOST, num_ranks, {})
    assert nodes_of(bindings) == [None] * num_ranks
    assert told == f"not bound: {why}"


@pytest.mark.parametrize("topology", [None, {}, {"nodes": {}, "cards": None, "adapters": []}])
def test_no_topology_no_binding(topology):
    bindings, told = bind_ranks(NodeReport("node01", card_count=0, topology=topology), HOST, 2, {})
    assert nodes_of(bindings) == [None, None]
    assert told == "not bound: this node tells nothing of its NUMA nodes"


def adapters_for(root: Path, nodes, down=()) -> list[str]:
    add_nodes(root, 2)
    add_kfd_cards(root, (0, 0, 0, 1))
    add_adapters(root, nodes, down)
    return [binding.adapter for binding in bind_ranks(report(root, cards=4), HOST, 4, {})[0]]


def test_nearest_adapter_where_there_is_a_choice(tmp_path: Path):
    assert adapters_for(tmp_path, {"mlx5_0": 0, "mlx5_1": 1}) == ["mlx5_0:1"] * 3 + ["mlx5_1:1"]


def test_ranks_take_turns_among_adapters_of_a_node(tmp_path: Path):
    seen = adapters_for(tmp_path, {"shca_0": 0, "shca_1": 0, "shca_2": 1})
    assert seen == ["shca_0:1", "shca_1:1", "shca_0:1", "shca_2:1"]


@pytest.mark.parametrize(
    ("nodes", "down"),
    [
        ({"mlx5_0": 0}, ()),
        ({"mlx5_0": 0, "mlx5_1": -1}, ()),
        ({"mlx5_0": 0, "mlx5_1": 1}, ("mlx5_1",)),
        ({}, ()),
    ],
)
def test_adapters_are_left_alone_where_nothing_is_to_choose(tmp_path: Path, nodes, down):
    assert adapters_for(tmp_path, nodes, down) == [""] * 4


def test_no_adapter_for_a_rank_whose_node_has_none(tmp_path: Path):
    assert adapters_for(tmp_path, {"mlx5_0": 0, "mlx5_1": 0}) == ["mlx5_0:1", "mlx5_1:1", "mlx5_0:1", ""]
