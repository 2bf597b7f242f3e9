"""All ranks of one node: started together, read, watched, and ended with everything that they started. Runs in the agent.

Two stops. *Asked*: TERM once to each rank's own process, KILL after the grace. *Broken* (a rank failed, a node or the
head was lost; no common save is possible any more): TERM, KILL after 1 s. Descendants follow their ranks, also those in
sessions of their own: the agent is a child subreaper, so nothing escapes it, and nothing is looked for by name.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List, Optional, Set

from . import network, process_tree
from .deep_look import Beside
from .head_line import HeadLine
from .import_process import ImportProcess
from .joined import JoinedRanks
from .poller import EVENT_READ, Poller
from .rank_output import RankOutput
from .ranks import RankProcess, exit_status, spawn_rank

BROKEN_GRACE_S = 1.0
#: what ranks started may take to end by itself after them: resource trackers, data workers
AFTER_RANKS_S = 0.3
#: a rank that KILL has not ended by then sits in the kernel (a dead disk, a card that hangs): it is told, not waited for
STUCK_AFTER_S = 4.0
#: what a disk may take for the end of the logs; less when others wait for the end
LOGS_LIMIT_S, LOGS_LIMIT_STOPPING_S = 60.0, 3.0
#: output of an ended rank that may still be in its pipe; who holds it open and goes on writing is not waited for
READS_AT_END = 32
#: of a forked rank that ended as another process's child: nobody here was told how
EXIT_VANISHED = 70
_STAYS = (
    "rank %d printed a traceback %.0f s ago and its process %d has not ended: if it is not at work, a thread that is no "
    "daemon or a process that it started keeps it, and the others wait for it"
)


class RankGroup:
    """The ranks of one order after another.

    Args:
        token: names this run in the environment of everything that ranks start.
    """

    def __init__(self, poller: Poller, line: HeadLine, home: str, token: str) -> None:
        self._importer: Optional[ImportProcess] = None
        self._beside: Optional[Beside] = None
        self._poller = poller
        self._line = line
        self._home = home
        self._token = token
        self._ranks: Dict[int, RankProcess] = {}
        self._output = RankOutput(poller, line, stream_all=False)
        self._order: Dict[str, Any] = {}
        self._variables: Dict[str, str] = {}
        self._port: Optional[network.MasterPort] = None
        self._reserves_port = True
        self._awaits_import = False
        self._stopping = ""
        self._kill_at: Optional[float] = None
        self._stuck_at: Optional[float] = None
        self._left: List[int] = []
        self.spared: Set[int] = set()  # programs of the agent's own, not of ranks
        self._logs_until: Optional[float] = None
        self._joined = JoinedRanks()

    @property
    def is_empty(self) -> bool:
        """True when nothing of an order is left: no rank, none to come, no log to write."""
        return not self._ranks and not self._awaits_import and self._logs_until is None

    @property
    def grace_s(self) -> float:
        """For a TERM to the agent itself, which comes from outside (Slurm, the system)."""
        return float(self._order.get("grace", 30.0))

    @property
    def is_stopping(self) -> bool:
        """Whether the ranks were asked to end."""
        return bool(self._stopping)

    # ---- starting

    def adopt(self, importer: ImportProcess) -> None:
        """Fork the ranks of coming orders from this process, once it has imported all."""
        self._importer = importer
        self._poller.register(importer.socket, EVENT_READ, self._hear_importer)

    def accept(self, beside: Beside) -> None:
        """Have this process end with the ranks that there are now; at once where there are none any more."""
        self._beside = beside
        if self.is_empty or self._stopping:
            beside.cut()

    def _hear_importer(self) -> None:
        importer = self._importer
        if importer is not None and not importer.hear():
            self._poller.unregister(importer.socket)
        if self._awaits_import:
            self._awaits_import = False
            self._start_now()

    def start(
        self, order: Dict[str, Any], variables: Dict[str, str], port: Optional[network.MasterPort]
    ) -> None:
        """Start all ranks of an order and say so; or say what kept them from starting, with none left.

        Args:
            variables: the node's environment.
            port: the master's port, still listening; left here to rank 0.
        """
        self._order, self._variables, self._port = dict(order, token=self._token), variables, port
        self._stopping, self._kill_at, self._stuck_at, self._left = "", None, None, []
        self._joined = JoinedRanks()
        self._output = RankOutput(self._poller, self._line, bool(order.get("stream_all")))
        if order.get("start") == "fork" and self._importer is not None and not self._importer.is_ready:
            self._awaits_import = True
        else:
            self._start_now()

    def _start_now(self) -> None:
        order = self._order
        try:
            started = self._fork() or self._spawn()
        except OSError as error:
            what = os.fsdecode(error.filename) if error.filename else order["argv"][0]
            why = "%s: %s" % (what, error.strerror or error)
            rank = order["ranks"][len(self._ranks)]["rank"]
            self._line.send({"kind": "fault", "rank": rank, "error": why})
            self._stopping = "broken"
            self.kill_all()
            if not self._ranks:
                self._end_all()
            return
        for rank in started:
            self._register(rank)
            if rank.channel is not None:
                rank.tell(dict(order["recipe"], kind="recipe"))
        self._line.send({"kind": "started", "pids": {str(rank.rank): rank.pid for rank in started}})

    def _fork(self) -> List[RankProcess]:
        """Fork the ranks from the import process; an empty list when there is none or it is not fit for it."""
        order = self._order
        if order.get("start") != "fork" or self._importer is None:
            return []
        started, reason = self._importer.fork(order, self._variables, self._port)
        if reason:
            text = "ranks start as processes of their own: %s" % reason
            self._tell_event(order["ranks"][0]["rank"], "note", text)
        else:
            self._close_port()
        self._ranks.update({rank.rank: rank for rank in started})
        return started

    def _spawn(self) -> List[RankProcess]:
        is_served = self._importer is not None and self._importer.hosts_store  # its socket is the port's
        if self._port is not None and self._reserves_port and not is_served:
            self._port.reserve()
            self._reserves_port = False  # should a store refuse to share it, the next attempt goes without
        else:
            self._close_port()
        for which in self._order["ranks"]:
            rank = spawn_rank(self._order, which, self._variables, self._home)
            self._ranks[rank.rank] = rank
        return list(self._ranks.values())

    def _close_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _register(self, rank: RankProcess) -> None:
        self._output.register(rank)
        if rank.channel is not None:
            self._poller.register(rank.channel, EVENT_READ, lambda: self._read_channel(rank))

    def tell(self, message: Dict[str, Any]) -> None:
        """Send one message to every rank that has a channel."""
        for rank in self._ranks.values():
            rank.tell(message)

    # ---- what ranks say

    def _read_channel(self, rank: RankProcess) -> bool:
        """Read a piece of a rank's events; False when there is none now."""
        messages = rank.read_channel()
        if messages is None:
            self._close_channel(rank)
        for message in messages or ():
            self._line.send({"kind": "event", "rank": rank.rank, "event": message, "time": time.time()})
        return bool(messages)

    # ---- how ranks end

    def reap(self, only_ranks: bool) -> None:
        """Take the exit of every child: ranks are told to the head; adopted orphans just vanish.

        Args:
            only_ranks: a working thread runs programs of its own, whose exit is not ours to take.
        """
        by_pid = {rank.pid: rank for rank in self._ranks.values() if rank.status is None}
        # what a working thread waits for must not hide a rank's end behind its own
        left = list(by_pid)[::-1] if only_ranks else [-1]
        while left:
            try:
                pid, status = os.waitpid(left[-1], os.WNOHANG)
            except ChildProcessError:
                pid, status = 0, 0
            rank = by_pid.pop(pid, None)
            if rank is not None:
                self._end_rank(rank, exit_status(status))
            elif pid and self._importer is not None:
                text = self._importer.note_end(pid, exit_status(status))
                if text and not self._stopping:
                    self._tell_event(self._order["ranks"][0]["rank"], "warning", text)
            if only_ranks or not pid:
                left.pop()
        for rank in by_pid.values():
            if not rank.is_ours():
                self._end_rank(rank, EXIT_VANISHED)
        if self._ranks and all(rank.status is not None for rank in self._ranks.values()):
            self._end_all()

    def _end_rank(self, rank: RankProcess, status: int) -> None:
        rank.status = status
        self._read_rest(rank)
        self._line.send(
            {
                "kind": "rank_exit", "rank": rank.rank, "status": status, "log": rank.log_path,
                "tail": rank.tail.text() if status else "", "stopping": self._stopping, "time": time.time(),
            }
        )  # fmt: skip

    def _read_rest(self, rank: RankProcess) -> None:
        """What an ended rank had said: until its pipe and its channel are empty, within reason."""
        for _ in range(READS_AT_END):
            if not self._output.read(rank):
                break
        for _ in range(READS_AT_END):
            if rank.channel is None or not self._read_channel(rank):
                break

    def _end_all(self) -> None:
        """The last rank is gone: end what they left, close the logs; ``stopped`` is said when those are whole."""
        self._close_port()
        if self._importer is not None:
            self._importer.end_store()
        if self._beside is not None:
            self._beside.cut()
        self._left += self.end_leftovers()
        for rank in self._ranks.values():
            self._read_rest(rank)  # said by what it had started
            self._close(rank)
        self._ranks.clear()
        self._kill_at = self._stuck_at = None
        self._output.finish()
        limit_s = LOGS_LIMIT_STOPPING_S if self._stopping else LOGS_LIMIT_S
        self._logs_until = time.monotonic() + limit_s
        self._watch_logs(time.monotonic())

    def _watch_logs(self, now: float) -> None:
        if self._logs_until is not None and (self._output.is_finished or now >= self._logs_until):
            self._logs_until = None
            self._line.send({"kind": "stopped", "left": self._left, "log_error": self._output.fault()})

    def _close(self, rank: RankProcess) -> None:
        self._output.close(rank)
        self._close_channel(rank)

    def _close_channel(self, rank: RankProcess) -> None:
        if rank.channel is not None:
            if self._poller.is_registered(rank.channel):
                self._poller.unregister(rank.channel)
            rank.channel.close()
            rank.channel = None

    # ---- stopping

    def stop(self, how: str, grace_s: float) -> None:
        """Ask all ranks to end; those that have not in time are killed, with all that they started."""
        grace_s = grace_s if how == "asked" else min(grace_s, BROKEN_GRACE_S)
        self._awaits_import = False
        self._close_port()
        if not self._stopping:
            for rank in self._ranks.values():
                rank.signal(signal.SIGTERM)
        if not self._stopping or how == "broken":
            self._stopping = how
            at = time.monotonic() + grace_s
            self._kill_at = at if self._kill_at is None else min(self._kill_at, at)
        elif self._kill_at is not None:  # asked again: by somebody who waits less long
            self._kill_at = min(self._kill_at, time.monotonic() + grace_s)

    def wait_s(self) -> float:
        """How long nothing has to be done by the clock."""
        if self._logs_until is not None:
            return 0.02
        due = [at for at in (self._kill_at, self._stuck_at) if at is not None]
        return max(0.0, min([0.5, *(at - time.monotonic() for at in due)]))

    def watch(self, now: float) -> None:
        """What is due: the kill after a grace, the look for ranks that came to the rendezvous, reading again."""
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at, self._stuck_at = None, now + STUCK_AFTER_S
            self.kill_all()
        if self._stuck_at is not None and now >= self._stuck_at:
            self._left = [rank.pid for rank in self._ranks.values() if rank.status is None]
            self._end_all()
        living = {rank.rank: rank.pid for rank in self._ranks.values() if rank.status is None}
        fresh = self._joined.look(living, self._order, now) if living and not self._stopping else set()
        if fresh:
            self._line.send({"kind": "joined", "ranks": sorted(fresh)})
        for rank in [rank for rank in self._ranks.values() if rank.stays_after_error(now)]:
            self._tell_event(rank.rank, "warning", _STAYS % (rank.rank, now - rank.heard, rank.pid))
        self._output.resume(self._ranks.values())
        self._watch_logs(now)

    def _tell_event(self, rank: int, kind: str, text: str) -> None:
        event = {"kind": kind, "data": {"message": text}}
        self._line.send({"kind": "event", "rank": rank, "event": event, "time": time.time()})

    def kill_all(self) -> None:
        """KILL every rank and everything that descends from this agent, at once."""
        for rank in self._ranks.values():
            rank.signal(signal.SIGKILL)
        for process in self._descendants():
            process_tree.send_signal(process, signal.SIGKILL)

    def end_leftovers(self) -> List[int]:
        """End what ranks started and left running; returns the pids that not even KILL ended."""
        return process_tree.end_what_is_listed(self._descendants, AFTER_RANKS_S)

    def _descendants(self) -> List[process_tree.ProcessId]:
        """All that descends from this agent, but not our own import process, and no rank that is told as stuck."""
        keep = [self._importer.pid] if self._importer is not None else []
        keep += [self._beside.pid] if self._beside is not None else []
        return process_tree.descendants(os.getpid(), leave_out=[*keep, *self._left, *self.spared])

    def close(self) -> None:
        """End the import process and whatever else is left."""
        if self._importer is not None:
            self._importer.close()
            self._importer = None
        self.end_leftovers()
