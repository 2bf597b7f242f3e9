"""One host being opened: what it is doing, until when that may take, and what to close when somebody gives up waiting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from launcher.base.errors import UnreachableError

#: what a library promises to end by itself gets so much longer before it is cut off
SLACK_S = 3.0


class Attempt:
    """Entered by the thread that opens a host, watched by the one that waits for all of them.

    Attributes:
        doing: what it is doing, for messages.
    """

    def __init__(self) -> None:
        self.doing = "waiting for its turn"
        self._until: float | None = None
        self._limit_s = 0.0
        self._closers: list[Callable[[], object]] = []
        self._given_up = False
        self._lock = threading.Lock()

    def enter(self, doing: str, limit_s: float | None = None) -> None:
        """Say what happens now, and how many seconds it may take (None: as long as it likes).

        Raises:
            UnreachableError: nobody waits any more.
        """
        with self._lock:
            self._check()
            self.doing = doing
            self._limit_s = limit_s or 0.0
            self._until = None if limit_s is None else time.monotonic() + limit_s + SLACK_S

    def watch(self, close: Callable[[], object]) -> None:
        """Have something closed when the attempt is given up.

        Raises:
            UnreachableError: nobody waits any more; ``close`` has been called.
        """
        with self._lock:
            self._closers.append(close)
            if not self._given_up:
                return
        self._close_all()
        self._check()

    def _check(self) -> None:
        if self._given_up:
            raise UnreachableError("given up")

    def overdue(self) -> str:
        """Why this has to be given up; empty while there is time."""
        with self._lock:
            late = self._until is not None and time.monotonic() > self._until
            return f"no answer within {self._limit_s:.0f} s ({self.doing})" if late else ""

    def give_up(self) -> None:
        """Close what has been opened; its thread ends at its next step."""
        with self._lock:
            self._given_up = True
        self._close_all()

    def _close_all(self) -> None:
        with self._lock:
            closers, self._closers = self._closers, []
        for close in closers:
            with contextlib.suppress(Exception):  # it is broken anyway
                close()

    def done(self) -> None:
        """The session is open: its own ``close`` is what closes it from now on.

        Raises:
            UnreachableError: nobody waits any more.
        """
        with self._lock:
            self._check()
            self._closers.clear()
            self._until = None
