"""The request to end early: SIGTERM sets a flag, the loop reads it at the border of a step. Runs in every rank.

Saving inside the handler would cut a backward pass in two; before the loop there is nothing to save.
"""

from __future__ import annotations

import signal
from types import FrameType

STOPPED_CODE = 128 + signal.SIGTERM


class StopFlag:
    """Whether SIGTERM has come; until ``arm`` it ends the process at once."""

    def __init__(self) -> None:
        self.is_set = False
        self._armed = False

    def install(self) -> StopFlag:
        """Take over SIGTERM in this process."""
        signal.signal(signal.SIGTERM, self._handle)
        return self

    def arm(self) -> None:
        """From now on SIGTERM waits for the border of a step."""
        self._armed = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.is_set = True
        if not self._armed:
            raise SystemExit(STOPPED_CODE)
