"""Streams that outlast their reader: a closed terminal or pager costs a run its words, never its ranks or its exit code.

Runs on the head, for verbs that hold ranks; others may end when nobody reads them.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


def outlast_readers() -> None:
    """Let stdout and stderr go nowhere, from the moment on when they cannot be written any more."""
    sys.stdout = LastingStream(sys.stdout)
    sys.stderr = LastingStream(sys.stderr)


class LastingStream:
    """A text stream whose writes do not fail."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write, or let it go."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError):  # ValueError: closed by somebody
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Flush, or let it go."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        """What is still in the buffers must not fail either, when Python flushes them at its end."""
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._stream.fileno())
            os.close(null)
        except (OSError, ValueError):
            pass
