"""Nodes: the open sessions of a run as one thing: pings to all, words from all, losses named. Runs on the head.

Everything that arrives comes through one inbox, signals to the head included; ``arrivals`` is the only place that reads
it, so every wait of the head notices a lost node and Ctrl-C at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from launcher.base.errors import NodeLostError, PreflightError, StoppedError
from launcher.remote.session import Arrival, Inbox, Session

PING_EVERY_S = 2.0
TICK_S = 0.1
#: what says no more than that the node lives and how it does: nobody waits for it
ASIDE = frozenset({"pong", "gauges"})
#: what a node sends as soon as it can, perhaps while the head still waits for something else
UNASKED = frozenset({"report"})


class Nodes:
    """The agents of a run.

    Args:
        lost_after_s: a node that says nothing for so long is lost.
        tick: called some ten times a second while waiting.

    Attributes:
        lost: why, by node.
        gauges: what each node last said of its cards and itself, see ``launcher/node/gauges.py``.
    """

    def __init__(
        self, sessions: Sequence[Session], inbox: Inbox, lost_after_s: float, tick: Callable[[], None]
    ) -> None:
        self.sessions = sessions
        self._inbox = inbox
        self._lost_after_s = lost_after_s
        self._tick = tick
        self._looked = self._heard_at_least = time.monotonic()
        self._stood_still_s = self._ticked = 0.0
        self.lost: dict[int, str] = {}
        self.gauges: dict[int, dict[str, Any]] = {}
        self._early: dict[tuple[int, str], dict[str, Any]] = {}
        self._ended = threading.Event()
        threading.Thread(target=self._ping, daemon=True, name="ping").start()

    def set_tick(self, tick: Callable[[], None]) -> None:
        """Have something else done while waiting."""
        self._tick = tick

    def __len__(self) -> int:
        return len(self.sessions)

    def name(self, node: int) -> str:
        """The host's name as the user wrote it."""
        return self.sessions[node].host.name

    @property
    def alive(self) -> list[int]:
        """Nodes that are not lost."""
        return [node for node in range(len(self.sessions)) if node not in self.lost]

    def send(self, node: int, message: dict[str, Any]) -> None:
        """Send to one node; a broken line is told by the inbox."""
        if node not in self.lost:
            self.sessions[node].send(message)

    def send_data(self, node: int, piece: bytes) -> bool:
        """Send a piece of a file to one node, from any thread; False when it cannot be."""
        return node not in self.lost and self.sessions[node].send_data(piece)

    def send_all(self, message: dict[str, Any]) -> None:
        """Send to every node that is not lost."""
        for node in self.alive:
            self.send(node, message)

    def clock(self) -> float:
        """Seconds of a clock that stands still while the head does: time that nobody could use is no reason to give up."""
        return time.monotonic() - self._stood_still_s

    def arrivals(self, until: float | None = None) -> Iterator[Arrival]:
        """Everything that comes in, forever or until a moment of ``clock``; losses come once a node."""
        while True:
            self._note_pause()
            now = self.clock()
            if until is not None and now >= until:
                return
            if now - self._ticked >= TICK_S:
                self._ticked = now
                yield from self._silent_nodes()
                self._tick()
            arrival = self._inbox.get(TICK_S if until is None else min(TICK_S, until - now))
            if arrival is None:
                continue
            if arrival.node < 0:
                yield arrival
            elif arrival.node not in self.lost:
                yield from self._sort(arrival)

    def _note_pause(self) -> None:
        """See whether we were stopped, or very busy: silence since then is not the nodes' fault."""
        now = time.monotonic()
        if now - self._looked > PING_EVERY_S:
            self._stood_still_s += now - self._looked
            self._heard_at_least = now
        self._looked = now

    def _sort(self, arrival: Arrival) -> Iterator[Arrival]:
        if arrival.lost:
            self.lost[arrival.node] = arrival.lost
            yield arrival
        elif not isinstance(arrival.frame, dict) or arrival.frame.get("kind") not in ASIDE:
            yield arrival
        elif arrival.frame["kind"] == "gauges":
            self.gauges[arrival.node] = arrival.frame

    def _ping(self) -> None:
        """The nodes' lease on the head, in a thread: a disk that keeps the head waiting is no reason to end a run."""
        while not self._ended.wait(min(PING_EVERY_S, self._lost_after_s / 4)):
            for node in self.alive:
                if not self.sessions[node].is_sending:
                    self.send(node, {"kind": "ping"})

    def _silent_nodes(self) -> Iterator[Arrival]:
        now = time.monotonic()
        for node in self.alive:
            silent_s = now - max(self.sessions[node].heard, self._heard_at_least)
            if silent_s > self._lost_after_s:
                self.lost[node] = f"no answer for {silent_s:.0f} s"
                yield Arrival(node, lost=self.lost[node])

    def collect(
        self,
        kind: str,
        nodes: Sequence[int],
        limit_s: float,
        waiting: Callable[[list[str]], None] | None = None,
    ) -> dict[int, dict[str, Any]]:
        """Wait for one message of a kind from each of some nodes; ``arrived`` in it: when, by the head's clock.

        Raises:
            NodeLostError: a node was lost while waiting.
            PreflightError: a node reported a fault, or did not answer within ``limit_s``.
            StoppedError: the head was asked to end.
        """
        answers = {node: self._early.pop((node, kind)) for node in nodes if (node, kind) in self._early}
        for arrival in self.arrivals(self.clock() + limit_s) if len(answers) < len(nodes) else ():
            frame = self._expect_frame(arrival)
            if frame is not None:
                frame = {**frame, "arrived": time.time()}
                if arrival.node in nodes and frame["kind"] in (kind, "fault"):
                    answers[arrival.node] = frame
                elif frame["kind"] in UNASKED:
                    self._early[(arrival.node, frame["kind"])] = frame
            if len(answers) == len(nodes):
                break
            if waiting is not None:
                waiting([self.name(node) for node in nodes if node not in answers])
        faults = [
            f"{self.name(n)}: {frame['error']}" for n, frame in answers.items() if frame["kind"] == "fault"
        ]
        if faults:
            raise PreflightError("\n".join(faults))
        late = [self.name(node) for node in nodes if node not in answers]
        if late:
            raise PreflightError(f"no answer ({kind}) within {limit_s:.0f} s from {', '.join(late)}")
        return answers

    def _expect_frame(self, arrival: Arrival) -> dict[str, Any] | None:
        if arrival.signal_number:
            raise StoppedError("stopped before the ranks were started", arrival.signal_number)
        if arrival.lost:
            raise NodeLostError(f"lost {self.name(arrival.node)}: {arrival.lost}")
        return arrival.frame if isinstance(arrival.frame, dict) else None

    def end(self, limit_s: float = 5.0) -> list[str]:
        """Have every agent end what is left and itself; returns the names of those that did not confirm."""
        if self._ended.is_set():
            return []
        self._ended.set()
        self.send_all({"kind": "end"})
        waiting = set(self.alive)
        for arrival in self.arrivals(self.clock() + limit_s) if waiting else ():
            ended = isinstance(arrival.frame, dict) and arrival.frame.get("kind") == "ended"
            if ended or arrival.lost:
                waiting.discard(arrival.node)
            if not waiting:
                break
        for session in self.sessions:
            session.close()
        return [self.name(node) for node in sorted(waiting)]
