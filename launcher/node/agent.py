"""The agent: one process on each node of a run, between the head and the ranks of that node.

Started by the bootstrap over an SSH session (or as a subprocess, or by srun). Its stdin is its lease: at end of file, or
when the head has not pinged for ``lost_after`` seconds, it ends its ranks and itself. It answers the head's words:

    prepare  make the environment, look at the node         -> report
    listen   open a port for the rendezvous                  -> listening
    reach    try the master's addresses                      -> reached
    order    start the ranks                                 -> started, then output, event, rank_ready, rank_exit
    go, save to the ranks
    stop     asked (TERM, grace, KILL) or broken (TERM, KILL after 1 s)  -> stopped
    end      nothing may be left                             -> ended, and the agent exits
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional, Set

from . import environment, guardian, network, probe, process_tree, wire
from .import_process import ImportProcess
from .joined import joined_ranks
from .output import LogWriter
from .ranks import RankProcess, exit_status, spawn_rank

BROKEN_GRACE_S = 1.0
LOST_AFTER_S = 10.0
OUT_BUFFER_BYTES = 4 * 1024 * 1024
AFTER_RANKS_S = 0.3
JOINED_EVERY_S = 0.5


class Agent:
    """State of one agent; ``run`` is its loop.

    Args:
        home: the unpacked folder this code runs from.
        reading: descriptor of the head's words.
        writing: descriptor of ours.
    """

    def __init__(self, home: str, reading: int, writing: int, token: str) -> None:
        self.home = home
        self.token = token
        self.ranks: Dict[int, RankProcess] = {}
        self._reading, self._writing = reading, writing
        self._frames = wire.FrameReader()
        self._out = bytearray()
        self._selector = selectors.DefaultSelector()
        self._logs = LogWriter()
        self._guardian, self._farewell = guardian.start_guardian(token)
        self._wake_reading, self._wake_writing = os.pipe()
        self._done_jobs: List[Callable[[], None]] = []
        self._jobs = 0
        self._variables: Dict[str, str] = {}
        self._order: Dict[str, Any] = {}
        self._port: Optional[network.MasterPort] = None
        self._importer: Optional[ImportProcess] = None
        self._lost_after = LOST_AFTER_S
        self._heard = time.monotonic()
        self._kill_at: Optional[float] = None
        self._stopping = ""
        self._head_gone = ""
        self._ending = False
        self._skipped: Dict[int, int] = {}
        self._joined: Set[int] = set()
        self._look_for_joined_at = 0.0
        self._terminated = False

    # ---- the loop

    def run(self) -> NoReturn:
        """Serve the head until it says ``end`` or is gone; then exit, with nothing left behind."""
        process_tree.become_subreaper()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        for descriptor in (self._reading, self._writing, self._wake_reading, self._wake_writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._wake_writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))
        self._selector.register(self._reading, selectors.EVENT_READ, self._read_head)
        self._selector.register(self._wake_reading, selectors.EVENT_READ, self._drain_wake)
        while not (self._ending and not self.ranks):
            for key, _ in self._selector.select(self._wait_s()):
                key.data()
            self._run_done_jobs()
            self._reap()
            self._watch_clock()
        self._leave()

    def _wait_s(self) -> float:
        limits = [0.5]
        if self._kill_at is not None:
            limits.append(self._kill_at - time.monotonic())
        return max(0.0, min(limits))

    def _watch_clock(self) -> None:
        now = time.monotonic()
        if self._terminated:
            self._terminated = False
            self._start_stop("asked", 30.0)
        if not self._head_gone and now - self._heard > self._lost_after:
            self._lose_head("no word from the head for %.0f s" % (now - self._heard))
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            self._kill_all()
        if (
            self.ranks
            and not self._stopping
            and len(self._joined) < len(self.ranks)
            and now >= self._look_for_joined_at
        ):
            self._look_for_joined_at = now + JOINED_EVERY_S
            self._tell_joined()
        self._resume_reading()

    def _tell_joined(self) -> None:
        absent = {
            rank.rank: rank.pid
            for rank in self.ranks.values()
            if rank.rank not in self._joined and rank.status is None
        }
        fresh = joined_ranks(absent, int(self._order["variables"]["MASTER_PORT"]))
        if fresh:
            self._joined |= fresh
            self.send({"kind": "joined", "ranks": sorted(fresh)})

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_reading, 4096)
        except BlockingIOError:
            pass

    # ---- the head

    def _read_head(self) -> None:
        try:
            data = os.read(self._reading, 256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._selector.unregister(self._reading)
            self._lose_head("the head closed the session")
            return
        self._heard = time.monotonic()
        try:
            for frame in self._frames.feed(data):
                if isinstance(frame, dict):
                    self._obey(frame)
        except wire.WireError as error:
            self._lose_head(str(error))

    def _lose_head(self, why: str) -> None:
        if self._head_gone:
            return
        self._head_gone = why
        sys.stderr.write("dcu-launch agent: %s; ending the ranks of this node\n" % why)
        self._start_stop("broken", BROKEN_GRACE_S)
        self._ending = True

    def _obey(self, message: Dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ping":
            self.send({"kind": "pong", "n": message.get("n", 0)})
        elif kind == "prepare":
            self._lost_after = float(message.get("lost_after", LOST_AFTER_S))
            self._in_thread(lambda: self._prepare(message))
        elif kind == "listen":
            self._listen(message)
        elif kind == "reach":
            self._in_thread(lambda: self._reach(message))
        elif kind == "order":
            self._start(message)
        elif kind in ("go", "save"):
            for rank in self.ranks.values():
                rank.tell({"kind": kind})
        elif kind == "stop":
            self._start_stop(message.get("how", "asked"), float(message.get("grace", 30.0)))
        elif kind == "end":
            self._start_stop("broken", BROKEN_GRACE_S)
            self._ending = True

    def send(self, message: Dict[str, Any]) -> None:
        """Queue one JSON message for the head."""
        self._put(wire.pack_message(message))

    def _put(self, data: bytes) -> None:
        if self._head_gone:
            return
        self._out += data
        self._flush()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: os.write(self._writing, self._out[: 256 * 1024])]
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EBADF, errno.ECONNRESET):
                self._out.clear()
                self._lose_head("the session to the head is closed")
                return
            raise
        registered = self._writing in self._selector.get_map()
        if self._out and not registered:
            self._selector.register(self._writing, selectors.EVENT_WRITE, self._flush)
        elif not self._out and registered:
            self._selector.unregister(self._writing)

    # ---- work that may block: in a thread, its result comes back to the loop

    def _in_thread(self, work: Callable[[], Dict[str, Any]]) -> None:
        def job() -> None:
            try:
                answer = work()
            except Exception as error:  # a fault of the probe must reach the head, whatever it is
                answer = {"kind": "fault", "error": "%s: %s" % (type(error).__name__, error)}
            self._done_jobs.append(lambda: self.send(answer))
            try:
                os.write(self._wake_writing, b"j")
            except BlockingIOError:
                pass

        self._jobs += 1
        threading.Thread(target=job, daemon=True).start()

    def _run_done_jobs(self) -> None:
        while self._done_jobs:
            self._jobs -= 1
            self._done_jobs.pop(0)()

    def _prepare(self, message: Dict[str, Any]) -> Dict[str, Any]:
        orphans = guardian.end_orphans()
        variables, steps = environment.make_environment(message)
        report = probe.look(message, variables)
        report.update(setup=steps, orphans=orphans)
        self._variables = variables
        no_cards = not (report.get("cards") or {}).get("count")
        if message.get("start") == "fork" or (message.get("start") == "auto" and no_cards):
            self._done_jobs.append(lambda: self._start_importer(message, report))
        return {"kind": "report", "report": report}

    def _start_importer(self, message: Dict[str, Any], report: Dict[str, Any]) -> None:
        """In the main thread, since the kernel ties its life to the thread that makes it."""
        python = (report.get("python") or {}).get("path")
        if python and not self._ending:
            self._importer = ImportProcess(python, self.home, message, report, self._variables)

    def _listen(self, message: Dict[str, Any]) -> None:
        self._close_port()
        try:
            self._port = network.MasterPort(int(message.get("port", 0)))
        except OSError as error:
            self.send({"kind": "fault", "error": "port %s: %s" % (message.get("port", 0), error.strerror)})
            return
        self.send({"kind": "listening", "port": self._port.port})

    def _reach(self, message: Dict[str, Any]) -> Dict[str, Any]:
        found = network.reach(message["candidates"], message["port"], message["nonce"])
        return dict(found, kind="reached")

    def _close_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    # ---- ranks

    def _start(self, order: Dict[str, Any]) -> None:
        self._order = order
        self._stopping = ""
        self._joined = set()
        self._kill_at = None
        try:
            started = self._fork_ranks(order) or self._spawn_ranks(order)
        except OSError as error:
            why = "%s: %s" % (order["argv"][0], error.strerror or error)
            self.send({"kind": "fault", "rank": order["ranks"][0]["rank"], "error": why})
            self._kill_all()
            self.send({"kind": "stopped", "left": [], "log_error": ""})
            return
        finally:
            self._close_port()
        for rank in started:
            self._selector.register(
                rank.pipe, selectors.EVENT_READ, lambda rank=rank: self._read_output(rank)
            )
            if rank.channel is not None:
                self._selector.register(
                    rank.channel, selectors.EVENT_READ, lambda rank=rank: self._read_channel(rank)
                )
                rank.tell(dict(order["recipe"], kind="recipe"))
        self.send({"kind": "started", "pids": {str(rank.rank): rank.pid for rank in started}})

    def _fork_ranks(self, order: Dict[str, Any]) -> List[RankProcess]:
        """Fork the ranks from the import process; an empty list when there is none or it is not fit for it."""
        if order.get("start") != "fork" or self._importer is None:
            return []
        started, reason = self._importer.fork(order, self._variables, self._port)
        if reason:
            note = {
                "kind": "note",
                "data": {"message": "ranks are started as processes of their own: %s" % reason},
            }
            self.send(
                {"kind": "event", "rank": order["ranks"][0]["rank"], "event": note, "time": time.time()}
            )
        self.ranks.update({rank.rank: rank for rank in started})
        return started

    def _spawn_ranks(self, order: Dict[str, Any]) -> List[RankProcess]:
        self._close_port()
        for which in order["ranks"]:
            rank = spawn_rank(order, which, self._variables, self.home)
            self.ranks[rank.rank] = rank
        return list(self.ranks.values())

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
        if len(self._out) < OUT_BUFFER_BYTES:
            skipped = self._skipped.pop(rank.rank, 0)
            if skipped:
                note = "\n[dcu-launch: %d bytes not shown here, they are in %s]\n" % (skipped, rank.log_path)
                self._put(wire.pack_output(rank.rank, note.encode()))
            self._put(wire.pack_output(rank.rank, data))
        elif self._order.get("stream_all"):
            self._put(wire.pack_output(rank.rank, data))
            self._pause_reading()
        else:
            self._skipped[rank.rank] = self._skipped.get(rank.rank, 0) + len(data)
        if self._logs.full:
            self._pause_reading()

    def _pause_reading(self) -> None:
        for rank in self.ranks.values():
            if rank.pipe >= 0 and rank.pipe in self._selector.get_map():
                self._selector.unregister(rank.pipe)

    def _resume_reading(self) -> None:
        if self._logs.full or (self._order.get("stream_all") and len(self._out) >= OUT_BUFFER_BYTES):
            return
        for rank in self.ranks.values():
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
            self.send({"kind": "event", "rank": rank.rank, "event": message, "time": time.time()})

    def _reap(self) -> None:
        """Take the exit of every child: ranks are told to the head; adopted orphans just vanish."""
        by_pid = {rank.pid: rank for rank in self.ranks.values() if rank.status is None}
        while True:
            try:
                peek = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if peek is None:
                break
            if peek.si_pid not in by_pid and self._jobs:
                break  # a child of the working thread's subprocess call: not ours to take
            _, status = os.waitpid(peek.si_pid, 0)
            rank = by_pid.pop(peek.si_pid, None)
            if rank is not None:
                self._end_rank(rank, exit_status(status))
        if self.ranks and not by_pid:
            self._end_all_ranks()

    def _end_rank(self, rank: RankProcess, status: int) -> None:
        rank.status = status
        while True:
            before = rank.pipe
            data = rank.read_output()
            if rank.pipe < 0 <= before and before in self._selector.get_map():
                self._selector.unregister(before)
            if not data:
                break
            self._logs.write(rank.log_path, data)
            self._forward(rank, data)
        if rank.channel is not None:
            self._read_channel(rank)
        self.send(
            {
                "kind": "rank_exit",
                "rank": rank.rank,
                "status": status,
                "tail": rank.tail.text() if status else "",
                "log": rank.log_path,
                "stopping": self._stopping,
                "time": time.time(),
            }
        )

    def _end_all_ranks(self) -> None:
        """The last rank is gone: end what they left, then say so."""
        if self._importer is not None:
            self._importer.end_store()
        left = self._end_leftovers()
        for rank in self.ranks.values():
            self._close_rank(rank)
        self.ranks.clear()
        self._kill_at = None
        self._logs.close(within_s=10.0)
        self.send({"kind": "stopped", "left": left, "log_error": self._logs.error})

    def _close_rank(self, rank: RankProcess) -> None:
        for held in (rank.pipe, rank.channel):
            if held is None or held == -1:
                continue
            if held in self._selector.get_map():
                self._selector.unregister(held)
            if isinstance(held, int):
                os.close(held)
            else:
                held.close()

    # ---- stopping

    def _start_stop(self, how: str, grace: float) -> None:
        """Ask all ranks to end; those that have not within ``grace`` seconds are killed, with all that they started."""
        now = time.monotonic()
        grace = grace if how == "asked" else min(grace, BROKEN_GRACE_S)
        if not self.ranks:
            if not self._ending:
                self.send({"kind": "stopped", "left": [], "log_error": ""})
            return
        first = not self._stopping
        self._stopping = how if first or how == "broken" else self._stopping
        if first:
            for rank in self.ranks.values():
                rank.signal(signal.SIGTERM)
        self._kill_at = now + grace if self._kill_at is None else min(self._kill_at, now + grace)

    def _kill_all(self) -> None:
        for rank in self.ranks.values():
            rank.signal(signal.SIGKILL)
        for process in process_tree.descendants(os.getpid(), leave_out=self._keepers()):
            process_tree.send_signal(process, signal.SIGKILL)

    def _keepers(self) -> List[int]:
        """Our own helpers, which are not part of a rank."""
        return [self._guardian] + ([self._importer.pid] if self._importer is not None else [])

    def _end_leftovers(self) -> List[int]:
        """End what ranks started and left running; returns the pids that not even KILL ended."""
        deadline = time.monotonic() + AFTER_RANKS_S
        while True:
            left = process_tree.descendants(os.getpid(), leave_out=self._keepers())
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        stubborn = process_tree.kill_until_gone(left)
        while stubborn and process_tree.descendants(os.getpid(), leave_out=self._keepers()):
            return [pid for pid, _ in stubborn]
        return []

    def _leave(self) -> NoReturn:
        self._close_port()
        if self._importer is not None:
            self._importer.close()
            self._importer = None
        self._end_leftovers()
        self.send({"kind": "ended"})
        deadline = time.monotonic() + 2.0
        while self._out and not self._head_gone and time.monotonic() < deadline:
            time.sleep(0.01)
            self._flush()
        os.write(self._farewell, guardian.FAREWELL)
        sys.stderr.flush()
        # a thread may wait in a read that never returns: the interpreter's orderly end would abort on it
        os._exit(5 if self._head_gone else 0)


def main(home: str, token: str) -> NoReturn:
    """Start the agent on stdin and stdout; whatever prints to stdout by accident goes to stderr."""
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    try:
        os.setsid()
    except OSError:
        pass  # already the leader of its session, as under sshd
    Agent(home, reading, writing, token).run()
