"""Session: one open line to one host, whatever carries it. Made by ``fanout``, used by ``launch``.

A transport gives a ``Stream`` of bytes; ``Session.start`` gets the agent running over it, and from then on a thread of
its own puts every frame that arrives into the inbox that all sessions of a run share.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.node import wire
from launcher.remote.bootstrap import EXIT_EARLY, EXIT_NO_PYTHON, MARK, OLDEST_AGENT_PYTHON, make_payload

START_LIMIT_S = 30.0
#: pieces of ranks' output, of 64 KiB at most, that wait for the head
MAX_OUTPUTS = 64
#: how long one message may wait for another one to leave
SEND_LIMIT_S = 10.0
READ_BYTES = 256 * 1024


class Stream(Protocol):
    """Bytes to and from a program that runs on a host."""

    def read(self, limit_s: float | None) -> bytes:
        """What has arrived, waiting at most ``limit_s``; empty at end of file.

        Raises:
            TimeoutError: nothing came in time.
            OSError: the line broke.
        """

    def write(self, data: bytes) -> None:
        """Send all bytes.

        Raises:
            OSError: the line broke, or nobody reads at the other end.
        """

    def close(self) -> None:
        """Close the line; the program sees end of file."""

    def last_words(self) -> str:
        """The end of what the program wrote to stderr, and its exit code when it has one."""

    def why_refused(self) -> UnreachableError | None:
        """For a carrier that is a program of its own (``ssh``): that it never got there, and why; None otherwise."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Something that came in: a frame of a node, the loss of its line, or a signal to the head.

    Attributes:
        node: index of the host in the run (its node rank); -1 for the head itself.
        frame: a dict or (rank, bytes); None when the line is lost.
        lost: why the line is lost.
        signal_number: a signal that the head received.
    """

    node: int
    frame: wire.Frame | None = None
    lost: str = ""
    signal_number: int = 0


class Inbox:
    """Where everything arrives, in order: frames of all sessions, from their threads, and signals.

    Output of ranks waits outside while too much of it is inside: the head may be slower than its ranks print, and a
    signal must not queue behind all that.
    """

    def __init__(self) -> None:
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._room = threading.Semaphore(MAX_OUTPUTS)

    def put(self, arrival: Arrival) -> None:
        """Add an arrival; waits only with output of ranks."""
        if isinstance(arrival.frame, tuple):
            self._room.acquire()
        self._arrivals.put(arrival)

    def get(self, limit_s: float) -> Arrival | None:
        """The next arrival; None when none comes within ``limit_s`` seconds (0: none is there)."""
        try:
            arrival = self._arrivals.get(timeout=limit_s) if limit_s > 0 else self._arrivals.get_nowait()
        except queue.Empty:
            return None
        if isinstance(arrival.frame, tuple):
            self._room.release()
        return arrival


class Session:
    """An agent on a host, reached over a stream.

    Args:
        node: index of the host in the run.
        inbox: where everything that arrives goes.

    Attributes:
        heard: when something came from the node last (``time.monotonic``), whether or not the head has looked at it.
    """

    def __init__(self, node: int, host: Host, stream: Stream, inbox: Inbox) -> None:
        self.node = node
        self.host = host
        self._stream = stream
        self._inbox = inbox
        self._lock = threading.Lock()
        self._closed = False
        self.heard = time.monotonic()

    def start(self, token: str, first: dict[str, Any]) -> None:
        """Bring the agent up and begin to read from it.

        Args:
            token: 32 hex characters that name this run on the node.
            first: the first message; it travels ahead, so that an agent whose code is there starts without waiting.

        Raises:
            UnreachableError: no agent came up; the message says what the host answered instead.
        """
        payload = make_payload()
        try:
            with contextlib.suppress(BrokenPipeError):  # it ended before it read: what it said tells why
                self._stream.write(payload.greeting(token, wire.pack_message(first)))
            word, rest = self._read_word()
            if word == "NEED":
                self._stream.write(payload.delivery())
        except OSError as error:
            raise self._stream.why_refused() or UnreachableError(
                f"{self.host.name}: the session broke while the agent started: {error}"
            ) from None
        threading.Thread(
            target=self._read_frames, args=(rest,), daemon=True, name=f"read-{self.host.name}"
        ).start()

    def _read_word(self) -> tuple[str, bytes]:
        """Pass over what the login shell prints, up to the bootstrap's HAVE or NEED."""
        seen = b"\n"
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                data = self._stream.read(max(0.1, deadline - time.monotonic()))
            except TimeoutError:
                raise self._stream.why_refused() or UnreachableError(
                    f"{self.host.name}: no answer from Python there within {START_LIMIT_S:.0f} s{_quote(seen)}"
                ) from None
            seen += data
            before, mark, after = seen.partition(MARK)
            line, newline, rest = after.partition(b"\n")
            if mark and newline:
                return self._judge(line.decode("utf-8", "replace")), rest
            if not data:
                raise self._stream.why_refused() or UnreachableError(
                    f"{self.host.name}: {self._explain_end(before)}"
                )
            seen = seen[-65536:]

    def _judge(self, line: str) -> str:
        word, _, detail = line.partition(" ")
        if word in ("HAVE", "NEED"):
            return word
        if word == "OLD":
            oldest = ".".join(map(str, OLDEST_AGENT_PYTHON))
            raise UnreachableError(
                f"{self.host.name}: Python {detail} is too old for the agent, {oldest} is the oldest",
                "name a newer one: python=/path/to/python3 on the hostfile line, or --python",
            )
        raise UnreachableError(
            f"{self.host.name}: no Python found, tried {detail}",
            "name one: python=/path/to/python3 on the hostfile line, or --python",
        )

    def _explain_end(self, seen: bytes) -> str:
        words = self._stream.last_words()
        if f"exit code {EXIT_NO_PYTHON}" in words:
            return "no Python found there"
        if f"exit code {EXIT_EARLY}" in words:
            return "the code for the agent did not arrive whole"
        return f"the shell there ended before Python started: {words}{_quote(seen)}".rstrip(": ")

    def _read_frames(self, rest: bytes) -> None:
        reader = wire.FrameReader()
        data = rest
        lost = ""
        try:
            while True:
                for frame in reader.feed(data):
                    self._inbox.put(Arrival(self.node, frame))
                data = self._stream.read(None)
                self.heard = time.monotonic()
                if not data:
                    lost = "the agent ended"
                    break
        except (OSError, wire.WireError) as error:
            lost = str(error) or type(error).__name__
        words = self._stream.last_words()
        self._inbox.put(Arrival(self.node, lost=f"{lost} ({words})" if words else lost))

    def send(self, message: dict[str, Any]) -> bool:
        """Send one message to the agent; False when the line is broken, which the inbox tells too."""
        return self._write(wire.pack_message(message))

    def send_data(self, data: bytes) -> bool:
        """Send a piece of a file; from any thread."""
        return self._write(wire.pack_data(data))

    @property
    def is_sending(self) -> bool:
        """Whether another thread is writing: the node hears of us, and a ping would have to wait."""
        return self._lock.locked()

    def _write(self, data: bytes) -> bool:
        if not self._lock.acquire(timeout=SEND_LIMIT_S):
            return False
        try:
            self._stream.write(data)
        except OSError:
            return False
        finally:
            self._lock.release()
        return True

    def close(self) -> None:
        """Close the line; an agent that is still there ends its ranks and itself."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(OSError):
                self._stream.close()


def _quote(seen: bytes) -> str:
    lines = seen.decode("utf-8", "replace").strip().split("\n")[-3:]
    return f"; it said: {' | '.join(lines)[-400:]}" if any(lines) else ""
