"""Text -> a stream that may stall (a terminal after Ctrl-S, a pager, a dead connection). Runs on the head.

The head's loop must answer its nodes every few seconds, whatever the terminal does: a thread writes.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from typing import TextIO

#: bytes that may wait for a stream that takes nothing; beyond it lines are counted instead of kept
MAX_WAITING = 16 * 1024 * 1024


class Outlet:
    """Writes to a stream in order, never waiting for it; streams without a descriptor are written directly.

    A stream that breaks (closed pipe, lost terminal) takes no more: the run goes on without it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._descriptor = _find_descriptor(stream)
        self._queue: deque[bytes] = deque()
        self._is_closing = False
        self._waiting = 0
        self._left_out = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.is_broken = False

    @property
    def is_stalled(self) -> bool:
        """Whether earlier text still waits to be taken."""
        return self._waiting > 0

    def write(self, text: str) -> None:
        """Give text to the stream, soon and in order."""
        data = text.encode(self._encoding, "backslashreplace")
        if self.is_broken or not data:
            return
        if self._descriptor is None:
            self._write_directly(data)
            return
        with self._changed:
            if self._waiting + len(data) > MAX_WAITING:
                self._left_out += text.count("\n")
                return
            if self._left_out:
                note = f"dcu-launch: {self._left_out} lines are not shown here, the logs hold them\n"
                self._put(note.encode())
                self._left_out = 0
            self._put(data)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, args=(self._descriptor,), name="terminal", daemon=True
            )
            self._thread.start()

    def drain(self, within_s: float) -> bool:
        """Wait until all text was taken; False when the stream did not take it in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting == 0 or self.is_broken, within_s)

    def close(self, within_s: float) -> bool:
        """Wait as ``drain`` does, then let go of the stream, which itself stays open."""
        is_done = self.drain(within_s)
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None and is_done:
            self._thread.join()
        elif self._thread is None and self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor, self.is_broken = None, True
        return is_done

    def _put(self, data: bytes) -> None:
        self._queue.append(data)
        self._waiting += len(data)
        self._changed.notify_all()

    def _write_directly(self, data: bytes) -> None:
        try:
            self._stream.write(data.decode(self._encoding))
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: the stream was closed
            self.is_broken = True

    def _run(self, descriptor: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._is_closing)
                data = b"".join(self._queue)
                self._queue.clear()
            if not data:
                break
            try:
                _write_all(descriptor, data)
            except OSError:
                self.is_broken = True
            with self._changed:
                self._waiting -= len(data)
                self._changed.notify_all()
        os.close(descriptor)


def _find_descriptor(stream: TextIO) -> int | None:
    """A descriptor of its own for the stream, flushed before; None for streams in memory."""
    try:
        stream.flush()
        return os.dup(stream.fileno())
    except (AttributeError, io.UnsupportedOperation, OSError, ValueError):
        return None


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # somebody else set the terminal so
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            poll.poll()
