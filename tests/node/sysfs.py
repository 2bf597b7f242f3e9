"""Folders that look like the /sys and /proc of nodes with cards, as far as the NUMA probe reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

#: cards 0..7 -> NUMA node, on hosts that people wrote about
HOSTS = {
    "identity": (0, 1, 2, 3, 4, 5, 6, 7),
    "mirrored": (0, 3, 2, 1, 4, 7, 6, 5),
    "bw1000": (3, 1, 1, 0, 7, 5, 5, 4),
    "two sockets": (0, 0, 0, 0, 1, 1, 1, 1),
    "one node": (0,) * 8,
}


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def add_nodes(root: Path, num_nodes: int, cpus_a_node: int = 4) -> None:
    """NUMA nodes with CPUs in blocks; each also has a block of second threads."""
    total = num_nodes * cpus_a_node
    for node in range(num_nodes):
        first = node * cpus_a_node
        second = total + first
        text = f"{first}-{first + cpus_a_node - 1},{second}-{second + cpus_a_node - 1}\n"
        write(root / f"sys/devices/system/node/node{node}/cpulist", text)
    write(root / "sys/devices/system/node/online", f"0-{num_nodes - 1}\n")


def pci_address(card: int) -> str:
    return f"0000:{0x20 + card:02x}:00.0"


def add_kfd_cards(root: Path, numa_nodes: Sequence[int], num_cpu_nodes: int = 2) -> None:
    """A KFD topology: CPU nodes without SIMD units first, then the cards."""
    topology = root / "sys/class/kfd/kfd/topology/nodes"
    for index in range(num_cpu_nodes):
        write(topology / str(index) / "properties", "cpu_cores_count 32\nsimd_count 0\nlocation_id 0\n")
    for card, node in enumerate(numa_nodes):
        text = (
            f"cpu_cores_count 0\nsimd_count 256\nvendor_id 7828\nlocation_id {(0x20 + card) << 8}\ndomain 0\n"
        )
        write(topology / str(num_cpu_nodes + card) / "properties", text)
        write(root / "sys/bus/pci/devices" / pci_address(card) / "numa_node", f"{node}\n")


def add_nvidia_cards(root: Path, numa_nodes: Sequence[int]) -> None:
    for card, node in enumerate(numa_nodes):
        write(root / "proc/driver/nvidia/gpus" / pci_address(card) / "information", "Model: card\n")
        write(root / "sys/bus/pci/devices" / pci_address(card) / "numa_node", f"{node}\n")


def add_adapters(root: Path, nodes: Mapping[str, int], down: Sequence[str] = ()) -> None:
    """Infiniband adapters by name with their NUMA node."""
    for name, node in nodes.items():
        folder = root / "sys/class/infiniband" / name
        write(folder / "device/numa_node", f"{node}\n")
        write(folder / "ports/1/state", "1: DOWN\n" if name in down else "4: ACTIVE\n")
