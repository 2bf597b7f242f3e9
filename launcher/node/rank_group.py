"""All ranks of one node: started together, read, watched, and ended with everything that they started. Runs in the agent.

Two stops. *Asked*: TERM once to each rank's own process, KILL after the grace. *Broken* (a rank failed, a node or the
head was lost; no common save is possible any more): TERM, KILL after 1 s. Descendants follow their ranks, also those in
sessions of their own: the agent is a child subreaper, so nothing escapes it, and nothing is looked for by name.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from typing import Any, Dict, List, Optional, Set

from . import network, process_tree
from .head_line import HeadLine
from .import_process import ImportProcess
from .joined import joined_ranks
from .output import LogWriter
from .ranks import RankProcess, exit_status, spawn_rank

BROKEN_GRACE_S = 1.0
#: what ranks started may take to end by itself after them: resource trackers, data workers
AFTER_RANKS_S = 0.3
JOINED_EVERY_S = 0.5


class RankGroup:
    """The ranks of one order after another.

    Args:
        guardian: pid that is never part of a rank.
    """

    def __init__(self, selector: selectors.BaseSelector, line: HeadLine, home: str, guardian: int) -> None:
        self.importer: Optional[ImportProcess] = None
        self._selector = selector
        self._line = line
        self._home = home
        self._guardian = guardian
        self._ranks: Dict[int, RankProcess] = {}
        self._logs = LogWriter()
        self._order: Dict[str, Any] = {}
        self._stopping = ""
        self._kill_at: Optional[float] = None
        self._skipped: Dict[int, int] = {}
        self._joined: Set[int] = set()
        self._look_at = 0.0

    @property
    def is_empty(self) -> bool:
        """True when no rank of an order is left."""
        return not self._ranks

    # ---- starting

    def start(
        self, order: Dict[str, Any], variables: Dict[str, str], port: Optional[network.MasterPort]
    ) -> None:
        """Start all ranks of an order and say so; or say what kept them from starting, with none left.

        Args:
            variables: the node's environment.
            port: the master's port, still listening; closed here before rank 0 wants it.
        """
        self._order, self._stopping, self._kill_at = order, "", None
        self._joined, self._skipped = set(), {}
        try:
            started = self._fork(order, variables, port) or self._spawn(order, variables, port)
        except OSError as error:
            why = "%s: %s" % (order["argv"][0], error.strerror or error)
            self._line.send({"kind": "fault", "rank": order["ranks"][0]["rank"], "error": why})
            self.kill_all()
            if self.is_empty:
                self._line.send({"kind": "stopped", "left": [], "log_error": ""})
            return
        for rank in started:
            self._register(rank)
            if rank.channel is not None:
                rank.tell(dict(order["recipe"], kind="recipe"))
        self._line.send({"kind": "started", "pids": {str(rank.rank): rank.pid for rank in started}})

    def _fork(
        self, order: Dict[str, Any], variables: Dict[str, str], port: Optional[network.MasterPort]
    ) -> List[RankProcess]:
        """Fork the ranks from the import process; an empty list when there is none or it is not fit for it."""
        if order.get("start") != "fork" or self.importer is None:
            return []
        started, reason = self.importer.fork(order, variables, port)
        if reason:
            note = {"kind": "note", "data": {"message": "ranks start as processes of their own: %s" % reason}}
            rank = order["ranks"][0]["rank"]
            self._line.send({"kind": "event", "rank": rank, "event": note, "time": time.time()})
        elif port is not None:
            port.close()
        self._ranks.update({rank.rank: rank for rank in started})
        return started

    def _spawn(
        self, order: Dict[str, Any], variables: Dict[str, str], port: Optional[network.MasterPort]
    ) -> List[RankProcess]:
        if port is not None:
            port.close()
        for which in order["ranks"]:
            rank = spawn_rank(order, which, variables, self._home)
            self._ranks[rank.rank] = rank
        return list(self._ranks.values())

    def _register(self, rank: RankProcess) -> None:
        self._selector.register(rank.pipe, selectors.EVENT_READ, lambda: self._read_output(rank))
        if rank.channel is not None:
            self._selector.register(rank.channel, selectors.EVENT_READ, lambda: self._read_channel(rank))

    def tell(self, message: Dict[str, Any]) -> None:
        """Send one message to every rank that has a channel."""
        for rank in self._ranks.values():
            rank.tell(message)

    # ---- what ranks say

    def _read_output(self, rank: RankProcess) -> None:
        pipe = rank.pipe
        data = rank.read_output()
        if rank.pipe < 0:
            self._selector.unregister(pipe)
        if data:
            self._logs.write(rank.log_path, data)
            self._forward(rank, data)

    def _forward(self, rank: RankProcess, data: bytes) -> None:
        """To the head: all of it when the head keeps the logs, else as much as the line takes."""
        keeps_all = bool(self._order.get("stream_all"))
        if self._line.is_full and not keeps_all:
            self._skipped[rank.rank] = self._skipped.get(rank.rank, 0) + len(data)
        else:
            skipped = self._skipped.pop(rank.rank, 0)
            if skipped:
                note = "\n[dcu-launch: %d bytes not shown here, they are in %s]\n" % (skipped, rank.log_path)
                self._line.send_output(rank.rank, note.encode("utf-8", "replace"))
            self._line.send_output(rank.rank, data)
        if self._logs.full or (keeps_all and self._line.is_full):
            for other in self._ranks.values():
                if other.pipe >= 0 and other.pipe in self._selector.get_map():
                    self._selector.unregister(other.pipe)

    def _resume_reading(self) -> None:
        if self._logs.full or (self._order.get("stream_all") and self._line.is_full):
            return
        for rank in self._ranks.values():
            if rank.pipe >= 0 and rank.pipe not in self._selector.get_map():
                self._selector.register(
                    rank.pipe, selectors.EVENT_READ, lambda rank=rank: self._read_output(rank)
                )

    def _read_channel(self, rank: RankProcess) -> None:
        messages = rank.read_channel()
        if messages is None:
            if rank.channel is not None:
                self._selector.unregister(rank.channel)
                rank.channel.close()
                rank.channel = None
            return
        for message in messages:
            self._line.send({"kind": "event", "rank": rank.rank, "event": message, "time": time.time()})

    # ---- how ranks end

    def reap(self, only_ranks: bool) -> None:
        """Take the exit of every child: ranks are told to the head; adopted orphans just vanish.

        Args:
            only_ranks: a working thread runs programs of its own, whose exit is not ours to take.
        """
        by_pid = {rank.pid: rank for rank in self._ranks.values() if rank.status is None}
        while True:
            try:
                peek = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if peek is None or (peek.si_pid not in by_pid and only_ranks):
                break
            _, status = os.waitpid(peek.si_pid, 0)
            rank = by_pid.pop(peek.si_pid, None)
            if rank is not None:
                self._end_rank(rank, exit_status(status))
        if self._ranks and not by_pid:
            self._end_all()

    def _end_rank(self, rank: RankProcess, status: int) -> None:
        rank.status = status
        data = b"-"
        while data:
            before = rank.pipe
            data = rank.read_output()
            if rank.pipe < 0 <= before and before in self._selector.get_map():
                self._selector.unregister(before)
            if data:
                self._logs.write(rank.log_path, data)
                self._forward(rank, data)
        if rank.channel is not None:
            self._read_channel(rank)
        self._line.send(
            {
                "kind": "rank_exit", "rank": rank.rank, "status": status, "log": rank.log_path,
                "tail": rank.tail.text() if status else "", "stopping": self._stopping, "time": time.time(),
            }
        )  # fmt: skip

    def _end_all(self) -> None:
        """The last rank is gone: end what they left, then say so."""
        if self.importer is not None:
            self.importer.end_store()
        left = self.end_leftovers()
        for rank in self._ranks.values():
            self._close(rank)
        self._ranks.clear()
        self._kill_at = None
        self._logs.close(within_s=10.0)
        self._line.send({"kind": "stopped", "left": left, "log_error": self._logs.error})

    def _close(self, rank: RankProcess) -> None:
        if rank.pipe >= 0:
            if rank.pipe in self._selector.get_map():
                self._selector.unregister(rank.pipe)
            os.close(rank.pipe)
        if rank.channel is not None:
            self._selector.unregister(rank.channel)
            rank.channel.close()

    # ---- stopping

    def stop(self, how: str, grace_s: float) -> None:
        """Ask all ranks to end; those that have not in time are killed, with all that they started."""
        grace_s = grace_s if how == "asked" else min(grace_s, BROKEN_GRACE_S)
        if not self._stopping:
            for rank in self._ranks.values():
                rank.signal(signal.SIGTERM)
        if not self._stopping or how == "broken":
            self._stopping = how
            at = time.monotonic() + grace_s
            self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def wait_s(self) -> float:
        """How long nothing has to be done by the clock."""
        return 0.5 if self._kill_at is None else max(0.0, min(0.5, self._kill_at - time.monotonic()))

    def watch(self, now: float) -> None:
        """What is due: the kill after a grace, the look for ranks that came to the rendezvous, reading again."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self.kill_all()
        if not self._stopping and len(self._joined) < len(self._ranks) and now >= self._look_at:
            self._look_at = now + JOINED_EVERY_S
            self._tell_joined()
        self._resume_reading()

    def _tell_joined(self) -> None:
        living = [
            rank for rank in self._ranks.values() if rank.status is None and rank.rank not in self._joined
        ]
        pids = {rank.rank: rank.pid for rank in living}
        fresh = joined_ranks(pids, int(self._order["variables"]["MASTER_PORT"]))
        if fresh:
            self._joined |= fresh
            self._line.send({"kind": "joined", "ranks": sorted(fresh)})

    def kill_all(self) -> None:
        """KILL every rank and everything that descends from this agent, at once."""
        for rank in self._ranks.values():
            rank.signal(signal.SIGKILL)
        for process in process_tree.descendants(os.getpid(), leave_out=self._keepers()):
            process_tree.send_signal(process, signal.SIGKILL)

    def end_leftovers(self) -> List[int]:
        """End what ranks started and left running; returns the pids that not even KILL ended."""
        deadline = time.monotonic() + AFTER_RANKS_S
        left = process_tree.descendants(os.getpid(), leave_out=self._keepers())
        while left and time.monotonic() < deadline:
            time.sleep(0.02)
            left = process_tree.descendants(os.getpid(), leave_out=self._keepers())
        for _ in range(20):  # what is killed may have had children that only now become ours
            stubborn = process_tree.kill_until_gone(left)
            left = process_tree.descendants(os.getpid(), leave_out=self._keepers())
            if stubborn or not left:
                return [pid for pid, _ in stubborn]
        return [pid for pid, _ in left]

    def _keepers(self) -> List[int]:
        """Our own, which are not part of a rank."""
        return [self._guardian] + ([self.importer.pid] if self.importer is not None else [])

    def close(self) -> None:
        """End the import process and whatever else is left."""
        if self.importer is not None:
            self.importer.close()
            self.importer = None
        self.end_leftovers()
