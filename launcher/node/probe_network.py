"""Adapters of a node: RDMA cards and the state of its network interfaces. Runs in the agent."""

from __future__ import annotations

import glob
import os
import re
from typing import Any, Dict, List

from .probe_system import read_text


def find_hcas(root: str = "") -> List[Dict[str, Any]]:
    """RDMA adapters: ``name``, ``state`` and ``rate`` of the first port that is up, ``numa``."""
    found = []
    for path in sorted(glob.glob(root + "/sys/class/infiniband/*")):
        hca: Dict[str, Any] = {"name": os.path.basename(path), "state": "unknown"}
        for port in sorted(glob.glob(path + "/ports/*")):
            state = (read_text(port + "/state") or "").partition(":")[2].strip().lower()
            if hca["state"] != "active" and state:
                hca.update(state=state, rate=read_text(port + "/rate"), link=read_text(port + "/link_layer"))
        numa = read_text(path + "/device/numa_node")
        if numa and re.match(r"\d+$", numa):
            hca["numa"] = int(numa)
        found.append(hca)
    return found


def describe_links(root: str = "") -> Dict[str, Dict[str, Any]]:
    """Of each interface ``state``, ``mtu`` and, where its driver tells it, ``speed`` in Mbit/s."""
    found = {}
    for path in sorted(glob.glob(root + "/sys/class/net/*")):
        link: Dict[str, Any] = {"state": read_text(path + "/operstate")}
        for name in ("mtu", "speed"):
            text = read_text(path + "/" + name)
            if text and re.match(r"\d+$", text):
                link[name] = int(text)
        found[os.path.basename(path)] = link
    return found
