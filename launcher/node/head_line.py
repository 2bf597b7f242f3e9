"""The agent's line to the head: frames in, frames out without ever blocking, and the lease. Runs in the agent.

End of file on stdin, a broken stdout, or silence for ``lost_after`` seconds (the head pings each 2 s) mean that the head
is gone.
"""

from __future__ import annotations

import os
import time

from . import wire
from .poller import EVENT_READ, EVENT_WRITE, Poller

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable, Dict

LOST_AFTER_S = 10.0
#: a gap between two looks at the clock that tells of a stall of our own
STALLED_S = 2.5
#: beyond so much unsent output, ranks' lines for the terminal are dropped (or ranks are not read, see ``RankGroup``)
OUT_BUFFER_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 256 * 1024


class HeadLine:
    """Both directions of the session.

    Args:
        obey: called with each message of the head.
        take: called with each piece of a file from the head.
        lose: called once with the reason when the head is gone.

    Attributes:
        gone: why the head is gone; empty while it is there.
        lost_after: seconds of silence that mean that it is gone.
    """

    def __init__(
        self,
        poller: Poller,
        reading: int,
        writing: int,
        obey: Callable[[Dict[str, Any]], None],
        take: Callable[[bytes], None],
        lose: Callable[[str], None],
    ) -> None:
        self.gone = ""
        self.lost_after = LOST_AFTER_S
        self._poller = poller
        self._reading, self._writing = reading, writing
        self._obey, self._take, self._lose = obey, take, lose
        self._frames = wire.FrameReader()
        self._out = bytearray()
        self._heard = self._looked = time.monotonic()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        poller.register(reading, EVENT_READ, self._read)

    @property
    def is_full(self) -> bool:
        """True while the head takes less than ranks print."""
        return len(self._out) >= OUT_BUFFER_BYTES

    def send(self, message: Dict[str, Any]) -> None:
        """Queue one JSON message."""
        self._put(wire.pack_message(message))

    def send_data(self, data: bytes) -> None:
        """Queue a piece of a file."""
        self._put(wire.pack_data(data))

    def send_output(self, rank: int, data: bytes) -> None:
        """Queue output of a rank."""
        self._put(wire.pack_output(rank, data))

    def watch(self, now: float) -> None:
        """See whether the head has been silent for too long; called at least twice a second."""
        if now - self._looked > STALLED_S:
            # this node itself stood still (memory, disk): so did whatever brings the head's words, and they may be waiting
            self._heard = now
        self._looked = now
        if not self.gone and now - self._heard > self.lost_after:
            self.lose("no word from the head for %.0f s" % (now - self._heard))

    def lose(self, why: str) -> None:
        """Note that the head is gone and have the ranks ended."""
        if not self.gone:
            self.gone = why
            self._out.clear()
            self._lose(why)

    def drain(self, within_s: float) -> None:
        """Send what is queued, waiting a little."""
        deadline = time.monotonic() + within_s
        while self._out and not self.gone and time.monotonic() < deadline:
            time.sleep(0.005)
            self._flush()

    def _read(self) -> None:
        try:
            data = os.read(self._reading, CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._poller.unregister(self._reading)
            self.lose("the head closed the session")
            return
        self._heard = time.monotonic()
        self.feed(data)

    def feed(self, data: bytes) -> None:
        """Obey what the head has sent."""
        try:
            for frame in self._frames.feed(data):
                if isinstance(frame, dict):
                    self._obey(frame)
                elif isinstance(frame, bytes):
                    self._take(frame)
        except wire.WireError as error:
            self.lose(str(error))

    def _put(self, data: bytes) -> None:
        if not self.gone:
            self._out += data
            self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: os.write(self._writing, self._out[:CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError as error:
            self.lose("the session to the head is closed (%s)" % error.strerror)
        registered = self._poller.is_registered(self._writing)
        if self._out and not registered:
            self._poller.register(self._writing, EVENT_WRITE, self._flush)
        elif not self._out and registered:
            self._poller.unregister(self._writing)
