"""What ranks print: whole to their log files, and to the head as much as its line takes. Runs in the agent's main thread.

Nothing here waits: not for the disk (``LogWriter``), not for the head (``HeadLine``). When one of them falls too far
behind, ranks are not read for a while, and wait themselves.
"""

from __future__ import annotations

import os
from typing import Dict, Iterable

from .head_line import HeadLine
from .output import LogWriter
from .poller import EVENT_READ, Poller
from .ranks import RankProcess


class RankOutput:
    """The output of the ranks of one order.

    Args:
        stream_all: the head keeps the logs too, so it gets every byte; else what is too much for its line is left out.
    """

    def __init__(self, poller: Poller, line: HeadLine, stream_all: bool) -> None:
        self._poller = poller
        self._line = line
        self._stream_all = stream_all
        self._logs = LogWriter()
        self._left_out: Dict[int, int] = {}

    def register(self, rank: RankProcess) -> None:
        """Read this rank from now on."""
        self._poller.register(rank.pipe, EVENT_READ, lambda: self.read(rank))

    def _unregister(self, pipe: int) -> None:
        if pipe >= 0 and self._poller.is_registered(pipe):
            self._poller.unregister(pipe)

    @property
    def _is_full(self) -> bool:
        return self._logs.full or (self._stream_all and self._line.is_full)

    def read(self, rank: RankProcess) -> bool:
        """Read a piece of a rank's output; False when there is none now."""
        pipe = rank.pipe
        data = rank.read_output()
        if rank.pipe < 0:
            self._unregister(pipe)
        if data:
            self._logs.write(rank.log_path, data)
            self._forward(rank, data)
        if self._is_full:
            self._unregister(rank.pipe)
        return bool(data)

    def _forward(self, rank: RankProcess, data: bytes) -> None:
        if self._line.is_full and not self._stream_all:
            self._left_out[rank.rank] = self._left_out.get(rank.rank, 0) + len(data)
            return
        self._tell_left_out(rank)
        self._line.send_output(rank.rank, data)

    def _tell_left_out(self, rank: RankProcess) -> None:
        count = self._left_out.pop(rank.rank, 0)
        if count:
            note = "\n[dcu-launch: %d bytes not shown here, they are in %s]\n" % (count, rank.log_path)
            self._line.send_output(rank.rank, note.encode("utf-8", "replace"))

    def resume(self, ranks: Iterable[RankProcess]) -> None:
        """Read those again that were not read for a while, when disk and head have caught up."""
        if self._is_full:
            return
        for rank in ranks:
            if rank.pipe >= 0 and not self._poller.is_registered(rank.pipe):
                self.register(rank)

    def close(self, rank: RankProcess) -> None:
        """Nothing more is read of this rank; what was left out of its output is told."""
        self._tell_left_out(rank)
        self._unregister(rank.pipe)
        if rank.pipe >= 0:
            os.close(rank.pipe)
            rank.pipe = -1

    def finish(self) -> None:
        """All ranks are closed: let the files be completed."""
        self._logs.finish()

    @property
    def is_finished(self) -> bool:
        """True when the files are whole, or will never be."""
        return self._logs.is_finished

    def fault(self) -> str:
        """Why a file is not whole; empty when all are."""
        return self._logs.fault()
