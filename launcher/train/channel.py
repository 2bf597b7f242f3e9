"""The line between a rank and its agent: JSON lines over an inherited socket, or plain text without an agent.

Runs in every rank. Orders come in (``recipe``, ``go``, ``save``, ``stop``), events go out (``rank_ready``,
``metric``, ``checkpoint``, ``result``, ``note``, ``warning``).
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import sys
from typing import Any

CHANNEL_VARIABLE = "DCU_LAUNCH_CHANNEL"


class Channel:
    """One end of the line; without a socket events are printed and no orders come."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._sock = sock
        self._received = b""
        self._orders: list[dict[str, Any]] = []

    @classmethod
    def from_environment(cls) -> Channel:
        """The channel named by DCU_LAUNCH_CHANNEL, or one that prints."""
        # taken out of the environment: children of this rank must not believe that it is theirs
        number = os.environ.pop(CHANNEL_VARIABLE, "")
        if not number:
            return cls()
        sock = socket.socket(fileno=int(number))
        sock.set_inheritable(False)
        sock.setblocking(True)
        return cls(sock)

    @property
    def has_agent(self) -> bool:
        """Whether an agent listens."""
        return self._sock is not None

    def receive(self, kind: str) -> dict[str, Any]:
        """Wait for the order of this kind and return it; raises EOFError when the agent is gone."""
        while True:
            self._take_lines()
            for index, order in enumerate(self._orders):
                if order.get("kind") == kind:
                    return self._orders.pop(index)
            if not self._read_more():
                raise EOFError(f"the agent closed the channel before it sent {kind!r}")

    def poll(self) -> list[str]:
        """The kinds of the orders that have come meanwhile; never waits."""
        if self._sock is not None:
            while select.select([self._sock], [], [], 0)[0] and self._read_more():
                pass
        self._take_lines()
        kinds = [str(order.get("kind")) for order in self._orders]
        self._orders.clear()
        return kinds

    def send(self, kind: str, data: dict[str, Any], step: int | None = None) -> None:
        """Send one event; an agent that is gone is no error here, since it ends its ranks by other means."""
        event: dict[str, Any] = {"kind": kind, "data": data}
        if step is not None:
            event["step"] = step
        if self._sock is None:
            text = describe_event(event)
            if text:
                sys.stdout.write(text + "\n")
                sys.stdout.flush()
            return
        line = json.dumps(event, ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"
        try:
            self._sock.sendall(line.encode("utf-8", "replace"))
        except OSError:
            self._sock.close()
            self._sock = None

    def note(self, message: str) -> None:
        """Tell the user something worth knowing."""
        self.send("note", {"message": message})

    def warn(self, message: str) -> None:
        """Tell the user something that is probably not meant."""
        self.send("warning", {"message": message})

    def _read_more(self) -> bool:
        try:
            data = self._sock.recv(65536) if self._sock is not None else b""
        except OSError:
            data = b""
        self._received += data
        return bool(data)

    def _take_lines(self) -> None:
        *lines, self._received = self._received.split(b"\n")
        self._orders += [json.loads(line) for line in lines if line.strip()]


def describe_event(event: dict[str, Any]) -> str:
    """An event as a line for people; empty for those that only an agent needs."""
    kind, data = event["kind"], event["data"]
    if kind == "metric":
        parts = [f"step {event['step']}"]
        parts += [f"{key} {data[key]:.4f}" for key in ("loss", "eval_loss") if data.get(key) is not None]
        parts += [f"lr {data['lr']:.2e}"] if "lr" in data else []
        parts += [f"{data['tokens_per_s']:.0f} tokens/s"] if "tokens_per_s" in data else []
        return "  ".join(parts)
    if kind in ("note", "warning"):
        return f"{kind}: {data['message']}"
    if kind in ("checkpoint", "result"):
        return f"{kind}: {data['path']}"
    return ""


def finite(value: float) -> float | None:
    """The number, or None for what JSON cannot hold."""
    return value if math.isfinite(value) else None
