"""The NUMA probe on recorded trees, and a binding that really holds in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.node.numa import format_cpu_list, parse_cpu_list, read_topology
from tests.node.sysfs import (
    HOSTS,
    add_adapters,
    add_kfd_cards,
    add_nodes,
    add_nvidia_cards,
    pci_address,
    write,
)

ALL = set(range(1024))


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("add_cards", [add_kfd_cards, add_nvidia_cards])
def test_cards_of_recorded_hosts(tmp_path: Path, name, add_cards):
    add_nodes(tmp_path, 8)
    add_cards(tmp_path, HOSTS[name])
    topology = read_topology(str(tmp_path), ALL)
    assert [card["node"] for card in topology["cards"]] == list(HOSTS[name])
    assert [card["address"] for card in topology["cards"]] == [pci_address(card) for card in range(8)]
    assert topology["nodes"]["7"] == "28-31,60-63"
    assert list(topology["nodes"]) == [str(node) for node in range(8)]


def test_twelve_cards_are_counted_by_number_not_by_name(tmp_path: Path):
    add_kfd_cards(tmp_path, range(12), num_cpu_nodes=1)
    cards = read_topology(str(tmp_path), ALL)["cards"]
    assert [card["node"] for card in cards] == list(range(12))


def test_pci_address_from_location_and_domain(tmp_path: Path):
    write(
        tmp_path / "sys/class/kfd/kfd/topology/nodes/1/properties",
        f"simd_count 64\nlocation_id {0xC1 << 8 | 3 << 3 | 1}\ndomain 2\n",
    )
    write(tmp_path / "sys/bus/pci/devices/0002:c1:03.1/numa_node", "6\n")
    assert read_topology(str(tmp_path), ALL)["cards"] == [{"address": "0002:c1:03.1", "node": 6}]


def test_what_is_not_told_is_unknown(tmp_path: Path):
    add_nodes(tmp_path, 1)
    assert read_topology(str(tmp_path), ALL)["cards"] is None
    add_kfd_cards(tmp_path, (-1, 0))
    (tmp_path / "sys/bus/pci/devices" / pci_address(1) / "numa_node").unlink()
    assert [card["node"] for card in read_topology(str(tmp_path), ALL)["cards"]] == [None, None]
    write(tmp_path / "sys/class/kfd/kfd/topology/nodes/9/properties", "simd_count 64\n")
    assert read_topology(str(tmp_path), ALL)["cards"] is None


def test_cpus_that_ranks_may_not_use_are_left_out(tmp_path: Path):
    add_nodes(tmp_path, 2)
    write(tmp_path / "sys/devices/system/node/node2/cpulist", "\n")  # memory alone
    assert read_topology(str(tmp_path), {2, 3, 8, 9})["nodes"] == {"0": "2-3,8-9"}
    assert read_topology(str(tmp_path), ALL)["nodes"] == {"0": "0-3,8-11", "1": "4-7,12-15"}


def test_adapters_with_an_active_port_in_their_natural_order(tmp_path: Path):
    add_adapters(tmp_path, {"mlx5_10": 1, "mlx5_2": 0, "mlx5_3": -1, "mlx5_4": 0}, down=["mlx5_4"])
    assert read_topology(str(tmp_path), ALL)["adapters"] == [
        {"name": "mlx5_2", "port": 1, "node": 0},
        {"name": "mlx5_3", "port": 1, "node": None},
        {"name": "mlx5_10", "port": 1, "node": 1},
    ]


def test_this_machine_reads_without_an_error():
    topology = read_topology()
    used = {cpu for cpus in topology["nodes"].values() for cpu in parse_cpu_list(cpus)}
    assert used <= os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3,8", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("\n", set()), ("0,2-3", {0, 2, 3})],
)
def test_cpu_lists(text, cpus):
    assert parse_cpu_list(text) == cpus
    assert format_cpu_list(cpus) == text.strip()


_BOUND = """
import os, sys
sys.path.insert(0, sys.argv[1])
from launcher.node.numa import Binding
Binding({"node": int(sys.argv[3]), "cpus": sys.argv[2]}).apply()
print(sorted(os.sched_getaffinity(0)))
"""


def bound(cpus: str, node: int) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    words = [sys.executable, "-c", _BOUND, root, cpus, str(node)]
    return subprocess.run(words, capture_output=True, text=True, check=True)


def test_binding_holds_in_the_process():
    first = min(os.sched_getaffinity(0))
    done = bound(str(first), 0)
    assert (done.stdout, done.stderr) == (f"[{first}]\n", "")


def test_memory_of_a_node_that_is_not_there_is_no_fault():
    first = min(os.sched_getaffinity(0))
    assert bound(str(first), 200).stdout == f"[{first}]\n"


def test_cpus_that_are_not_there_are_told_in_the_ranks_own_output():
    done = bound("100000", 0)
    assert done.stdout == f"{sorted(os.sched_getaffinity(0))}\n"
    assert done.stderr == "dcu-launch: not bound to CPUs 100000: Invalid argument\n"
