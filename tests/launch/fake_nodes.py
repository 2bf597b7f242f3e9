"""Nodes without agents: ``arrivals`` plays what a test wrote down, ``send`` records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launcher.remote.session import Arrival

Reply = Callable[[int, dict[str, Any]], Sequence[Arrival]]


class FakeNodes:
    """As much of ``launcher.launch.nodes.Nodes`` as transfers use.

    Args:
        reply: what a node answers to a message; comes in by ``arrivals``.
    """

    def __init__(self, names: Sequence[str], reply: Reply) -> None:
        self._names = list(names)
        self._reply = reply
        self._coming: list[Arrival] = []
        self.sent: list[tuple[int, dict[str, Any]]] = []
        self.data: dict[int, bytes] = {}
        self.lost: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._names)

    def name(self, node: int) -> str:
        return self._names[node]

    def send(self, node: int, message: dict[str, Any]) -> None:
        self.sent.append((node, message))
        self._coming += self._reply(node, message)

    def send_all(self, message: dict[str, Any]) -> None:
        for node in range(len(self)):
            self.send(node, message)

    def send_data(self, node: int, piece: bytes) -> bool:
        self.data[node] = self.data.get(node, b"") + piece
        return True

    def clock(self) -> float:
        return 0.0

    def arrivals(self, until: float | None = None) -> Iterator[Arrival]:
        while self._coming:
            yield self._coming.pop(0)

    def collect(self, kind: str, nodes: Sequence[int], limit_s: float) -> dict[int, dict[str, Any]]:
        found = {}
        for arrival in self.arrivals():
            if isinstance(arrival.frame, dict) and arrival.frame["kind"] == kind:
                found[arrival.node] = arrival.frame
        assert set(found) == set(nodes)
        return found
