"""How far each node's clock is from the head's, by one round trip while the node prepares. Runs on the head."""

from __future__ import annotations

import time
from typing import Any

from launcher.launch.nodes import Nodes

LIMIT_S = 30.0


def measure_clocks(nodes: Nodes) -> list[dict[str, Any]]:
    """Of each node ``offset_s``, its clock minus the head's, and ``margin_s``, half the round trip.

    Raises:
        LauncherError: a node was lost, or the head was asked to end, as in ``Nodes.collect``.
    """
    sent = []
    for node in range(len(nodes)):
        sent.append(time.time())
        nodes.send(node, {"kind": "clock"})
    answers = nodes.collect("clock", list(range(len(nodes))), LIMIT_S)
    clocks = []
    for node, start in enumerate(sent):
        end, told = float(answers[node]["arrived"]), float(answers[node]["time"])
        clocks.append(
            {"offset_s": round(told - (start + end) / 2, 4), "margin_s": round((end - start) / 2, 4)}
        )
    return clocks
