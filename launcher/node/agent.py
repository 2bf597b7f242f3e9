"""The agent: one process on each node of a run, between the head and the ranks of that node.

Started by the bootstrap over an SSH session (or as a subprocess, or by srun). Its stdin is its lease: when the head is
gone it ends its ranks and itself. It answers the head's words:

    prepare  make the environment, look at the node; start the import process   -> report
    clock    what time is it there                                             -> clock
    look_deeper  what torch, operators say, in a process of their own          -> looked
    listen   open a port for the rendezvous                                     -> listening
    reach    try the master's addresses                                         -> reached
    order    start the ranks                  -> started, then output, event, joined, rank_exit
    go, save to the ranks
    sync_look, sync_take, fetch_look, fetch, taken   folders on their way here or there, see ``folder_in``, ``folder_out``
    stop     asked or broken, see ``RankGroup``                                 -> stopped
    end      nothing may be left                                                -> ended, and the agent exits
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NoReturn, Optional

from . import deep_look, environment, folder_in, folder_out, guardian, network, probe, process_tree
from .head_line import HeadLine
from .import_process import ImportProcess
from .rank_group import BROKEN_GRACE_S, RankGroup

#: of a TERM to the agent itself, which comes from outside (Slurm, the system)
DEFAULT_GRACE_S = 30.0


class Agent:
    """State of one agent; ``run`` is its loop.

    Args:
        home: the unpacked folder this code runs from.
        reading: descriptor of the head's words.
        writing: descriptor of ours.
        token: names this run among the processes of this node.
    """

    def __init__(self, home: str, reading: int, writing: int, token: str) -> None:
        self.home = home
        self._selector = selectors.DefaultSelector()
        self._wake_reading, self._wake_writing = os.pipe()
        self._line = HeadLine(self._selector, reading, writing, self._obey, self._take, self._on_head_lost)
        self._group = RankGroup(self._selector, self._line, home, token)
        self._done_jobs: List[Callable[[], None]] = []
        self._jobs = 0
        self._receiver: Optional[folder_in.FolderReceiver] = None
        self._sender: Optional[folder_out.FolderSender] = None
        self._variables: Dict[str, str] = {}
        self._port: Optional[network.MasterPort] = None
        self._ending = False
        self._terminated = False

    def run(self, first: bytes) -> NoReturn:
        """Serve the head until it says ``end`` or is gone; then exit, with nothing left behind.

        Args:
            first: what has been read of the head's words already.
        """
        process_tree.become_subreaper()
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        os.set_blocking(self._wake_reading, False)
        os.set_blocking(self._wake_writing, False)
        signal.set_wakeup_fd(self._wake_writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))
        self._selector.register(self._wake_reading, selectors.EVENT_READ, self._drain_wake)
        self._line.feed(first)
        while not (self._ending and self._group.is_empty):
            for key, _ in self._selector.select(self._group.wait_s()):
                key.data()
            self._run_done_jobs()
            self._group.reap(only_ranks=self._jobs > 0)
            self._watch_clock()
        self._leave()

    def _watch_clock(self) -> None:
        if self._terminated:
            self._terminated = False
            if not self._group.is_stopping:
                self._group.stop("asked", DEFAULT_GRACE_S)
        now = time.monotonic()
        self._line.watch(now)
        self._group.watch(now)

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_reading, 4096)
        except BlockingIOError:
            pass

    def _on_head_lost(self, why: str) -> None:
        sys.stderr.write("dcu-launch agent: %s; ending the ranks of this node\n" % why)
        self._group.stop("broken", BROKEN_GRACE_S)
        self._ending = True

    # ---- the head's words

    def _obey(self, message: Dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ping":
            self._line.send({"kind": "pong"})
        elif kind == "order":
            port, self._port = self._port, None
            self._group.start(message, self._variables, port)
        elif kind in ("go", "save"):
            self._group.tell({"kind": kind})
        elif kind == "stop":
            self._group.stop(message["how"], float(message["grace"]))
            if self._group.is_empty:
                self._line.send({"kind": "stopped", "left": [], "log_error": ""})
        elif kind == "end":
            self._group.stop("broken", BROKEN_GRACE_S)
            self._ending = True
        else:
            self._obey_before_order(message)

    def _obey_before_order(self, message: Dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "prepare":
            self._line.lost_after = float(message.get("lost_after", self._line.lost_after))
            self._in_thread(lambda: self._prepare(message))
        elif kind == "clock":
            self._line.send({"kind": "clock", "time": time.time()})
        elif kind == "look_deeper":
            if message.get("frees_port"):
                self._close_port()
            beside = deep_look.Beside()
            if message.get("beside_ranks"):
                self._group.accept(beside)
            self._in_thread(lambda: deep_look.look(message, self.home, self._variables, beside))
        elif kind == "listen":
            self._listen(message)
        elif kind == "reach":
            self._in_thread(lambda: self._reach(message))
        else:
            self._obey_about_folders(message)

    def _take(self, piece: bytes) -> None:
        if self._receiver is not None:
            self._receiver.feed(piece)

    def _obey_about_folders(self, message: Dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "sync_look":
            self._in_thread(lambda: folder_in.look(message))
        elif kind == "sync_take":
            self._receiver = folder_in.FolderReceiver(message, self._say_from_thread)
        elif kind == "fetch_look":
            self._in_thread(lambda: folder_out.look(message))
        elif kind == "fetch":
            self._sender = folder_out.FolderSender(
                message["folder"], self._say_from_thread, self._send_from_thread
            )
        elif kind == "taken" and self._sender is not None:
            self._sender.taken(int(message["bytes"]))

    def _prepare(self, message: Dict[str, Any]) -> Dict[str, Any]:
        orphans = guardian.end_orphans()
        variables, steps = environment.make_environment(message)
        report = probe.look(message, variables)
        if report.get("sees_run_dir") is False:
            report["run_dir_error"] = folder_out.make_run_dir(message["run_dir"])
        report.update(setup=steps, orphans=orphans)
        self._variables = variables
        no_cards = not (report.get("cards") or {}).get("count")
        if message.get("start") == "fork" or (message.get("start") == "auto" and no_cards):
            self._finish_in_loop(lambda: self._start_importer(message, report))
        return {"kind": "report", "report": report}

    def _start_importer(self, message: Dict[str, Any], report: Dict[str, Any]) -> None:
        """In the main thread, since the kernel ties its life to the thread that makes it."""
        python = (report.get("python") or {}).get("path")
        if python and not self._ending:
            try:
                importer = ImportProcess(python, self.home, message, report, self._variables)
            except OSError:
                return  # the ranks start as processes of their own, and tell what is wrong with it
            self._group.adopt(importer)

    def _close_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _listen(self, message: Dict[str, Any]) -> None:
        self._close_port()
        wanted = int(message.get("port", 0))
        try:
            self._port = network.MasterPort(wanted)
        except OSError as error:
            self._line.send({"kind": "fault", "error": "port %d: %s" % (wanted, error.strerror)})
            return
        self._line.send({"kind": "listening", "port": self._port.port})

    def _reach(self, message: Dict[str, Any]) -> Dict[str, Any]:
        return dict(network.reach(message["candidates"], message["port"], message["nonce"]), kind="reached")

    # ---- work that may block: in a thread, its result comes back to the loop

    def _in_thread(self, work: Callable[[], Dict[str, Any]]) -> None:
        def job() -> None:
            try:
                answer = work()
            except environment.SetupError as error:
                answer = {"kind": "fault", "error": str(error)}
            except Exception as error:  # a fault of the probe must reach the head, whatever it is
                answer = {"kind": "fault", "error": "%s: %s" % (type(error).__name__, error)}
            self._finish_in_loop(lambda: self._end_job(answer))

        self._jobs += 1
        threading.Thread(target=job, daemon=True).start()

    def _finish_in_loop(self, work: Callable[[], None]) -> None:
        self._done_jobs.append(work)
        try:
            os.write(self._wake_writing, b"j")
        except BlockingIOError:
            pass

    def _say_from_thread(self, message: Dict[str, Any]) -> None:
        self._finish_in_loop(lambda: self._line.send(message))

    def _send_from_thread(self, piece: bytes) -> None:
        self._finish_in_loop(lambda: self._line.send_data(piece))

    def _end_job(self, answer: Dict[str, Any]) -> None:
        self._jobs -= 1
        self._line.send(answer)

    def _run_done_jobs(self) -> None:
        while self._done_jobs:
            self._done_jobs.pop(0)()

    def _leave(self) -> NoReturn:
        self._close_port()
        self._group.close()
        self._line.send({"kind": "ended"})
        self._line.drain(within_s=2.0)
        sys.stderr.flush()
        # a thread may wait in a call that never returns: the interpreter's orderly end would wait for it, or abort
        os._exit(5 if self._line.gone else 0)


def main(home: str, token: str, first: bytes = b"") -> NoReturn:
    """Start the agent on stdin and stdout; whatever prints to stdout by accident goes to stderr.

    Args:
        first: what the bootstrap has read from the head beyond the code: the head's first frames.
    """
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    guardian.start_agent_under_guard(token)
    os.setsid()
    Agent(home, reading, writing, token).run(first)
