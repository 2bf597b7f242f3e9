"""Sessions without hosts: what the head sends is kept, what the node says is up to the test."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from launcher.hosts.host import Host
from launcher.remote.session import Arrival, Inbox

Answer = Callable[["FakeSession", dict[str, Any]], None]


class FakeSession:
    """One node's line as ``launcher.launch`` sees it.

    Args:
        answer: called with each message of the head; it may call ``say``.

    Attributes:
        sent: the head's messages, without pings.
        pings: how many of those came.
        heard: when the node said something last.
    """

    def __init__(self, node: int, name: str, inbox: Inbox, answer: Answer = lambda *_: None) -> None:
        self.node = node
        self.host = Host(name)
        self.sent: list[dict[str, Any]] = []
        self.pings = 0
        self.heard = time.monotonic()
        self.is_sending = False
        self.is_closed = False
        self.is_dead = False
        self._inbox = inbox
        self._answer = answer

    def send(self, message: dict[str, Any]) -> bool:
        if message["kind"] == "ping":
            self.pings += 1
            if not self.is_dead:
                self.say(kind="pong")
            return True
        self.sent.append(message)
        if not self.is_dead:
            self._answer(self, message)
        return True

    def say(self, **message: Any) -> None:
        """A message of the node."""
        self.heard = time.monotonic()
        self._inbox.put(Arrival(self.node, message))

    def print(self, rank: int, data: bytes) -> None:
        """Output of a rank of the node."""
        self.heard = time.monotonic()
        self._inbox.put(Arrival(self.node, (rank, data)))

    def exit(self, rank: int, status: int, tail: str = "", stopping: str = "") -> None:
        """The end of a rank of the node."""
        log = f"/run/logs/{self.host.name}/rank-{rank:05d}.log"
        self.say(kind="rank_exit", rank=rank, status=status, log=log, tail=tail, stopping=stopping, time=1.0)

    def stopped(self, left: tuple[int, ...] = ()) -> None:
        """The last rank of the node is gone."""
        self.say(kind="stopped", left=list(left), log_error="")

    def hang_up(self, why: str = "the agent ended") -> None:
        """The line breaks."""
        self._inbox.put(Arrival(self.node, lost=why))

    def close(self) -> None:
        self.is_closed = True

    def kinds(self) -> list[str]:
        """Kinds of the head's messages, in order."""
        return [message["kind"] for message in self.sent]
