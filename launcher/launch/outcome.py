"""How a run ended, as records: made by ``supervise``, told by ``report``, kept in summary.json."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")


@dataclass(frozen=True, slots=True)
class RankExit:
    """The failed end of one rank.

    Attributes:
        code: exit code, None when a signal ended it.
        signal: number of that signal.
        tail: the end of its output, at most some 32 KiB.
        seq: place in the order in which the head heard of failures, from 0.
        after_stop: it ended after the launcher had asked ranks to stop.
    """

    rank: int
    host: str
    code: int | None
    signal: int | None
    tail: str
    log_path: str
    seq: int
    after_stop: bool

    def was_ended_by(self, signals: Sequence[int]) -> bool:
        """Whether it is the end by one of these signals, told as a signal or as a shell's exit code."""
        return self.signal in signals or (self.code or 0) - 128 in signals

    def lost_its_port(self, port: int | str) -> bool:
        """Whether rank 0 found the master's port taken by somebody else."""
        is_taken = self.rank == 0 and _PORT_TAKEN.search(self.tail) is not None
        return is_taken and str(port) in self.tail


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the ranks ended.

    Attributes:
        kind: ``done``, ``rank_failed``, ``node_lost``, ``stopped``, ``interrupted`` (asked to save and end), ``late``, or
            ``refused`` (by what torch is there).
        failures: ranks that failed, in order of arrival.
        lost: (host, why) of lost nodes.
        late: names of hosts and ranks that did not come up in time, as text.
        signal_number: what the head was stopped by.
        left: (host, pid) of processes that could not be ended.
        asked_by: who asked for the end, where it was not a signal from outside.
        saved_step: the step of the newest checkpoint that this attempt wrote; None: it wrote none.
        started_again: the failure is a port taken by somebody else before the first step; worth another try.
    """

    kind: str
    failures: Sequence[RankExit] = ()
    lost: Sequence[tuple[str, str]] = ()
    late: str = ""
    signal_number: int = 0
    left: Sequence[tuple[str, int]] = ()
    started_again: bool = False
    forced: bool = False
    saved_step: int | None = None
    results: dict[str, str] = field(default_factory=dict)
    asked_by: str = ""
