"""Signals to the head become arrivals in the inbox, so that every wait sees them. Runs on the head, main thread."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

from launcher.remote.session import Arrival, Inbox

REFUSAL = (
    b"dcu-launch: not stopped: the nodes would take the head for lost; "
    b"a run that was started with --detach leaves the terminal free\n"
)
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: asks for a save and an end from which the run goes on later: sent before a time limit
INTERRUPTING = signal.SIGUSR1


@contextlib.contextmanager
def signals_to(inbox: Inbox) -> Iterator[None]:
    """Put SIGINT, SIGTERM, SIGHUP and SIGUSR1 into the inbox while inside; a signal that was ignored on entry stays ignored.

    SIGTSTP is answered by a line and not obeyed: a stopped head would lose its nodes.
    """

    def arrive(number: int, _: FrameType | None) -> None:
        inbox.put(Arrival(-1, signal_number=number))

    def refuse(_: int, __: FrameType | None) -> None:
        # not sys.stderr, which may be in the middle of a write of its own, or gone
        with contextlib.suppress(OSError):
            os.write(2, REFUSAL)

    before = {}
    for number in (*STOPPING, INTERRUPTING, signal.SIGTSTP):
        before[number] = signal.getsignal(number)
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, refuse if number == signal.SIGTSTP else arrive)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
