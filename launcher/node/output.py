"""A rank's output on its node: whole in its log file, its tail in memory. Runs in the agent.

Files are written by a thread of their own: a shared disk that stalls must not keep the agent from answering the head.
"""

from __future__ import annotations

import os
import queue
import re
import threading
from typing import Dict, Optional, Tuple

TAIL_BYTES = 32 * 1024
#: of a traceback that is longer than the tail, so much is kept from its beginning, which names the error
BEGIN_BYTES = 8 * 1024
_ERROR_LINE = re.compile(rb"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b(?::|$)")
TRACEBACK = b"Traceback (most recent call last)"
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
    """The last bytes of a stream, and the beginning of the last traceback in it, should its message be longer than they."""

    def __init__(self) -> None:
        self._kept = b""
        self._begin = b""

    def add(self, data: bytes) -> None:
        """Remember ``data``, forget the oldest beyond ``TAIL_BYTES``."""
        joined = self._kept + data
        at = joined.rfind(TRACEBACK, max(0, len(self._kept) - len(TRACEBACK) + 1))
        if at >= 0:
            self._begin = joined[joined.rfind(b"\n", 0, at) + 1 :][:BEGIN_BYTES]
        elif 0 < len(self._begin) < BEGIN_BYTES:
            self._begin += data[: BEGIN_BYTES - len(self._begin)]
        self._kept = joined[-TAIL_BYTES:]

    @property
    def ends_in_error(self) -> bool:
        """Whether a traceback's last line, ``SomeError: why``, was the last that came."""
        begin = self._kept.rfind(TRACEBACK)
        return begin >= 0 and _ERROR_LINE.match(self._kept[begin:].rstrip().rpartition(b"\n")[2]) is not None

    def text(self) -> str:
        """What is kept, decoded; a first line cut in two is left out."""
        text = self._kept.decode("utf-8", "replace")
        if len(self._kept) < TAIL_BYTES:
            return text
        _, end, rest = text.partition("\n")
        if self._begin and TRACEBACK not in self._kept:
            return self._begin.decode("utf-8", "replace") + "\n" + rest
        return rest if end else text
