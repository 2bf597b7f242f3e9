"""A rank's output on its node: whole in its log file, its tail in memory. Runs in the agent.

Files are written by a thread of their own: a shared disk that stalls must not keep the agent from answering the head.
"""

from __future__ import annotations

import os
import queue
import threading
from typing import Dict, Optional, Tuple

TAIL_BYTES = 32 * 1024
QUEUE_BYTES = 64 * 1024 * 1024


class LogWriter:
    """Appends bytes to files, in order, from one background thread."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Optional[Tuple[str, bytes]]] = queue.Queue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._files: Dict[str, int] = {}
        self._thread: Optional[threading.Thread] = None
        self.error = ""

    @property
    def full(self) -> bool:
        """True while so much waits for the disk that ranks should not be read."""
        return self._waiting > QUEUE_BYTES

    def write(self, path: str, data: bytes) -> None:
        """Append ``data`` to the file, soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        with self._lock:
            self._waiting += len(data)
        self._queue.put((path, data))

    def close(self, within_s: float) -> bool:
        """Wait until all is written; False when the disk did not take it in time."""
        if self._thread is None:
            return True
        self._queue.put(None)
        self._thread.join(within_s)
        done = not self._thread.is_alive()
        self._thread = None
        return done

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                break
            path, data = item
            try:
                _write_all(self._open(path), data)
            except OSError as error:
                self.error = "%s: %s" % (path, error.strerror)
            with self._lock:
                self._waiting -= len(data)
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def _open(self, path: str) -> int:
        if path not in self._files:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._files[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        return self._files[path]


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Tail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._kept = b""

    def add(self, data: bytes) -> None:
        """Remember ``data``, forget the oldest beyond ``TAIL_BYTES``."""
        self._kept = (self._kept + data)[-TAIL_BYTES:]

    def text(self) -> str:
        """What is kept, decoded; a first line cut in two is left out."""
        text = self._kept.decode("utf-8", "replace")
        return text.split("\n", 1)[-1] if len(self._kept) == TAIL_BYTES else text
