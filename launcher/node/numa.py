"""Which CPUs, memory, cards and network adapters of this node lie together, and how a rank stays near its card.

``read_topology`` runs in the agent's probe and only reads; what belongs to which rank is decided on the head. ``Binding``
is made in the agent and applied in the new process of a rank. What cannot be read is None, and is never guessed.
"""

from __future__ import annotations

import ctypes
import glob
import os
import platform
import re
from typing import Any, Dict, Iterable, List, Optional, Set

#: set_mempolicy(2): pages come from this node while it has some, and from others instead of an error
MPOL_PREFERRED = 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "loongarch64": 237, "riscv64": 237}

_libc = ctypes.CDLL(None, use_errno=True)


def read_topology(root: str = "/", allowed: Optional[Set[int]] = None) -> Dict[str, Any]:
    """NUMA nodes, cards and adapters.

    Args:
        root: a folder that holds ``sys`` and ``proc``.
        allowed: CPUs that ranks may use; None: those of this process.

    Returns:
        ``nodes``: the allowed CPUs of each NUMA node that has some, by its number as text; ``cards``: in the order of
        their numbers, each ``address`` (PCI) and ``node`` (None: unknown), or None where the cards of this node cannot
        be told apart; ``adapters``: those with an active port, each ``name``, ``port`` and ``node``.
    """
    allowed = os.sched_getaffinity(0) if allowed is None else allowed
    return {"nodes": _read_nodes(root, allowed), "cards": _read_cards(root), "adapters": _read_adapters(root)}


def _read_nodes(root: str, allowed: Set[int]) -> Dict[str, str]:
    nodes = {}
    for path in glob.glob(os.path.join(root, "sys/devices/system/node/node[0-9]*")):
        cpus = parse_cpu_list(_read(os.path.join(path, "cpulist")) or "") & allowed
        if cpus:
            nodes[os.path.basename(path)[len("node") :]] = format_cpu_list(cpus)
    return dict(sorted(nodes.items(), key=lambda entry: int(entry[0])))


def _read_cards(root: str) -> Optional[List[Dict[str, Any]]]:
    addresses = _kfd_addresses(root)
    if addresses is None:
        folders = sorted(glob.glob(os.path.join(root, "proc/driver/nvidia/gpus/*")))
        addresses = [os.path.basename(folder) for folder in folders] or None
    if addresses is None:
        return None
    return [{"address": address, "node": _node_of_pci(root, address)} for address in addresses]


def _kfd_addresses(root: str) -> Optional[List[str]]:
    """PCI addresses of the nodes of the KFD topology that have SIMD units, in the order in which HIP counts them."""
    found = []
    paths = glob.glob(os.path.join(root, "sys/class/kfd/kfd/topology/nodes/*/properties"))
    for path in sorted(paths, key=lambda path: int(path.split("/")[-2])):
        entries = re.findall(r"^(\w+) (\d+)$", _read(path) or "", re.M)
        facts = {name: int(value) for name, value in entries}
        if not facts.get("simd_count"):
            continue
        if "location_id" not in facts:
            return None
        place = facts["location_id"]
        address = (facts.get("domain", 0), place >> 8 & 0xFF, place >> 3 & 0x1F, place & 7)
        found.append("%04x:%02x:%02x.%x" % address)
    return found or None


def _node_of_pci(root: str, address: str) -> Optional[int]:
    return _read_number(os.path.join(root, "sys/bus/pci/devices", address, "numa_node"))


def _read_adapters(root: str) -> List[Dict[str, Any]]:
    found = []
    for folder in glob.glob(os.path.join(root, "sys/class/infiniband/*")):
        ports = glob.glob(os.path.join(folder, "ports/[0-9]*"))
        active = [int(os.path.basename(port)) for port in ports if "ACTIVE" in (_read(port + "/state") or "")]
        if active:
            node = _read_number(os.path.join(folder, "device/numa_node"))
            found.append({"name": os.path.basename(folder), "port": min(active), "node": node})
    # mlx5_10 comes after mlx5_9
    return sorted(
        found, key=lambda adapter: [int(n) if n.isdigit() else n for n in re.split(r"(\d+)", adapter["name"])]
    )


def _read(path: str) -> Optional[str]:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return None


def _read_number(path: str) -> Optional[int]:
    """A NUMA node's number; -1, which means that the firmware does not say, is unknown."""
    text = (_read(path) or "").strip()
    return int(text) if text.isdigit() else None


def parse_cpu_list(text: str) -> Set[int]:
    """``0-3,8`` as numbers."""
    cpus: Set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Numbers as ``0-3,8``."""
    runs: List[List[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in runs)


class Binding:
    """The CPUs and the memory of one NUMA node for one rank.

    Args:
        wanted: ``node`` and ``cpus`` as the head decided; None: no binding.
    """

    def __init__(self, wanted: Optional[Dict[str, Any]]) -> None:
        self._cpus = parse_cpu_list(wanted["cpus"]) if wanted else set()
        self._call = _SET_MEMPOLICY.get(platform.machine())
        node = int(wanted["node"]) if wanted else 0
        self._mask = (ctypes.c_ulong * (node // 64 + 1))()
        self._mask[node // 64] = 1 << node % 64

    def apply(self) -> None:
        """Bind this process and all it starts; what the system refuses is told in the rank's own output."""
        if not self._cpus:
            return
        try:
            os.sched_setaffinity(0, self._cpus)
        except OSError as error:
            text = "dcu-launch: not bound to CPUs %s: %s\n" % (format_cpu_list(self._cpus), error.strerror)
            os.write(2, text.encode())
            return
        if self._call is not None:
            # containers often refuse it; without it pages come from where they are touched first: from here as well
            bits = len(self._mask) * 64 + 1
            _libc.syscall(self._call, MPOL_PREFERRED, ctypes.byref(self._mask), ctypes.c_ulong(bits))
