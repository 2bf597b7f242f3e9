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
    """Appends bytes to files, in order, from one background thread; one writer for each order."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Optional[Tuple[str, bytes]]] = queue.Queue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._error = ""

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

    def finish(self) -> None:
        """Nothing more will be written; ``is_finished`` tells when all is on disk."""
        if self._thread is not None:
            self._queue.put(None)

    @property
    def is_finished(self) -> bool:
        """True when nothing waits for the disk any more."""
        return self._thread is None or not self._thread.is_alive()

    def fault(self) -> str:
        """Why a file is not whole; empty when all that was written is on disk."""
        late = "" if self.is_finished else "the disk has not taken the last %d bytes" % self._waiting
        return self._error or late

    def _run(self) -> None:
        files: Dict[str, int] = {}
        while True:
            item = self._queue.get()
            if item is None:
                break
            path, data = item
            try:
                if path not in files:
                    files[path] = _open(path)
                _write_all(files[path], data)
            except OSError as error:
                self._error = "%s: %s" % (path, error.strerror)
            with self._lock:
                self._waiting -= len(data)
        for descriptor in files.values():
            os.close(descriptor)


def _open(path: str) -> int:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


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
