"""Adapters of a node: RDMA cards and the state of its network interfaces. Runs in the agent."""

from __future__ import annotations

import os

from .paths import find_paths, read_int, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List


def find_hcas(root: str = "") -> List[Dict[str, Any]]:
    """RDMA adapters: ``name``, ``state`` and ``rate`` of the first port that is up, ``numa``."""
    found = []
    for path in find_paths(root + "/sys/class/infiniband/*"):
        hca: Dict[str, Any] = {"name": os.path.basename(path), "state": "unknown"}
        for port in find_paths(path + "/ports/*"):
            state = (read_text(port + "/state") or "").partition(":")[2].strip().lower()
            if hca["state"] != "active" and state:
                hca.update(state=state, rate=read_text(port + "/rate"), link=read_text(port + "/link_layer"))
        numa = read_int(read_text(path + "/device/numa_node"))
        if numa is not None:
            hca["numa"] = numa
        found.append(hca)
    return found


def describe_links(root: str = "") -> Dict[str, Dict[str, Any]]:
    """Of each interface ``state``, ``mtu`` and, where its driver tells it, ``speed`` in Mbit/s."""
    found = {}
    for path in find_paths(root + "/sys/class/net/*"):
        link: Dict[str, Any] = {"state": read_text(path + "/operstate")}
        for name in ("mtu", "speed"):
            number = read_int(read_text(path + "/" + name))
            if number is not None:
                link[name] = number
        found[os.path.basename(path)] = link
    return found
