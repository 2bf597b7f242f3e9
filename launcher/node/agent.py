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
    watch    tell every few seconds how its cards and the host do                  -> gauges
    sync_look, sync_take, fetch_look, fetch, taken   folders on their way here or there, see ``folder_in``, ``folder_out``
    stop     asked or broken, see ``RankGroup``                                 -> stopped
    end      nothing may be left                                                -> ended, and the agent exits

Many nodes answer at once when a run begins, and some machines are small: what is needed up to the report loads no module
that takes long (``typing``, ``enum``, ``re``, ``json``, ``socket``, ``subprocess``, ``threading``, ``collections``); the rest
is loaded while the head waits for other nodes.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from . import environment, guardian, probe, process_tree
from .folders import Folders
from .head_line import HeadLine
from .poller import EVENT_READ, Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any, Callable, Dict, List, NoReturn, Optional

    from . import network
    from .gauges import Gauges
    from .rank_group import RankGroup
else:
    import _signal as signal  # the same functions and numbers, but no enumerations made of all of them

#: Slurm sends them to every process of a step; ranks hear of it there, and from the head
NOT_FOR_US = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGUSR1, signal.SIGUSR2)
#: when nothing is asked any more after the report, what starting ranks needs is loaded: not at once, since nodes that
#: share CPUs with others, or with the head, would keep those waiting
LOAD_AFTER_S = 5.0
TICK_S = 0.5
#: the bootstrap removes code that has been used by nobody for 30 days
TOUCH_EVERY_S = 6 * 3600.0
#: as in ``rank_group``, which is not loaded before ranks come
BROKEN_GRACE_S = 1.0
#: what tells that looking at a node will start programs
CARD_MARKS = ("/dev/kfd", "/dev/mkfd", "/proc/driver/nvidia")


class Agent:
    """State of one agent; ``run`` is its loop.

    Args:
        home: the unpacked folder this code runs from.
        reading: descriptor of the head's words.
        writing: descriptor of ours.
        token: names this run among the processes of this node.
        guardian_pid: the process that watches over this one.
    """

    def __init__(self, home: str, reading: int, writing: int, token: str, guardian_pid: int) -> None:
        self.home = home
        self._token = token
        self._guardian = guardian_pid
        self._poller = Poller()
        self._wake_reading, self._wake_writing = os.pipe()
        self._folders = Folders(self._in_thread, self._say_from_thread, self._send_from_thread)
        take = self._folders.take
        self._line = HeadLine(self._poller, reading, writing, self._obey, take, self._on_head_lost)
        self._group: Optional[RankGroup] = None
        self._load_at: Optional[float] = None
        self._touch_at = time.monotonic() + TOUCH_EVERY_S
        self._inherits = False
        self._done_jobs: List[Callable[[], None]] = []
        self._jobs = 0
        self._variables: Dict[str, str] = {}
        self._port: Optional[network.MasterPort] = None
        self._gauges: Optional[Gauges] = None
        self._ending = False
        self._terminated = False

    def run(self, first: bytes) -> NoReturn:
        """Serve the head until it says ``end`` or is gone; then exit, with nothing left behind.

        Args:
            first: what has been read of the head's words already.
        """
        for number in NOT_FOR_US:
            signal.signal(number, signal.SIG_IGN)
        os.set_blocking(self._wake_reading, False)
        os.set_blocking(self._wake_writing, False)
        signal.set_wakeup_fd(self._wake_writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_terminated", True))
        self._poller.register(self._wake_reading, EVENT_READ, self._drain_wake)
        self._line.feed(first)
        while not (self._ending and (self._group is None or self._group.is_empty)):
            for handle in self._poller.wait(self._group.wait_s() if self._group is not None else TICK_S):
                handle()
            self._run_done_jobs()
            if self._group is not None:
                self._group.reap(only_ranks=self._jobs > 0)
            self._watch_clock()
        self._leave()

    def _watch_clock(self) -> None:
        if self._terminated:
            self._terminated = False
            if self._group is not None and not self._group.is_stopping:
                self._group.stop("asked", self._group.grace_s)
        now = time.monotonic()
        self._line.watch(now)
        if now >= self._touch_at:
            self._touch_at = now + TOUCH_EVERY_S
            # in a thread: the disk of home folders may not answer
            _thread.start_new_thread(self._touch_home, ())
        if self._group is not None:
            self._group.watch(now)
        elif self._load_at is not None and now >= self._load_at and not self._ending:
            self._ranks()

    def _touch_home(self) -> None:
        """The code is in use: ranks may import more of it, however long they run."""
        try:
            os.utime(self.home)
        except OSError:
            pass  # not to be written: nobody removes it either

    def _ranks(self) -> RankGroup:
        """The group of ranks, loaded when it is needed, or when there is time."""
        if self._group is None:
            self._inherit()
            from . import network  # noqa: F401  for ``listen`` and ``reach``, which come next
            from .rank_group import RankGroup

            self._group = RankGroup(self._poller, self._line, self.home, self._token)
        return self._group

    def _inherit(self) -> None:
        """From now on programs are started: what they leave behind becomes ours, and after us the guardian's."""
        if not self._inherits:
            guardian.announce_start(self._guardian, self._token)
            process_tree.become_subreaper()
            self._inherits = True  # only now: whoever sees it may fork at once

    def _stop(self, how: str, grace_s: float) -> None:
        if self._group is not None:
            self._group.stop(how, grace_s)

    def _drain_wake(self) -> None:
        try:
            os.read(self._wake_reading, 4096)
        except BlockingIOError:
            pass

    def _on_head_lost(self, why: str) -> None:
        sys.stderr.write("dcu-launch agent: %s; ending the ranks of this node\n" % why)
        self._stop("broken", BROKEN_GRACE_S)
        self._ending = True

    # ---- the head's words

    def _obey(self, message: Dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "ping":
            self._line.send({"kind": "pong"})
        elif kind == "order":
            port, self._port = self._port, None
            self._ranks().start(message, self._variables, port)
        elif kind in ("go", "save"):
            self._ranks().tell({"kind": kind})
        elif kind == "stop":
            self._stop(message["how"], float(message["grace"]))
            if self._group is None or self._group.is_empty:
                self._line.send({"kind": "stopped", "left": [], "log_error": ""})
        elif kind == "end":
            self._stop("broken", BROKEN_GRACE_S)
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
            self._look_deeper(message)
        elif kind == "listen":
            self._listen(message)
            self._load_at = 0.0
        elif kind == "reach":
            self._in_thread(lambda: self._reach(message))
            self._load_at = 0.0
        elif kind == "watch" and self._gauges is None:
            self._watch(float(message["every"]))
        else:
            self._folders.obey(message)

    def _look_deeper(self, message: Dict[str, Any]) -> None:
        from . import deep_look

        beside = deep_look.Beside()
        self._inherit()  # it is a program that may start others
        if message.get("beside_ranks"):
            self._ranks().accept(beside)
        variables = self._marked_variables()
        self._in_thread(lambda: deep_look.look(message, self.home, variables, beside))

    def _marked_variables(self) -> Dict[str, str]:
        """The node's environment for a program of our own: by the mark it is found again if we are killed."""
        return dict(self._variables, **{guardian.RUN_VARIABLE: self._token})

    def _watch(self, every_s: float) -> None:
        from .gauges import Gauges

        self._gauges = Gauges(self._marked_variables(), every_s, self._say_from_thread)
        self._ranks().spared = self._gauges.pids

    def _prepare(self, message: Dict[str, Any]) -> Dict[str, Any]:
        if message.get("setup") or any(map(os.path.exists, (environment.DEFAULT_SETUP, *CARD_MARKS))):
            self._inherit()
        orphans = guardian.end_orphans()
        variables, steps = environment.make_environment(message)
        report = probe.look(message, variables)
        if report.get("sees_run_dir") is False:
            from . import folder_out

            # else the next start would find the working folder that this one was refused for
            if report.get("workdir") or not folder_out.is_inside(message["run_dir"], message["workdir"]):
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
            group = self._ranks()
            from .import_process import ImportProcess

            try:
                importer = ImportProcess(python, self.home, message, report, self._variables)
            except OSError:
                return  # the ranks start as processes of their own, and tell what is wrong with it
            group.adopt(importer)

    def _close_port(self) -> None:
        if self._port is not None:
            self._port.close()
            self._port = None

    def _listen(self, message: Dict[str, Any]) -> None:
        from . import network

        self._close_port()
        wanted = int(message.get("port", 0))
        try:
            self._port = network.MasterPort(wanted)
        except OSError as error:
            self._line.send({"kind": "fault", "error": "port %d: %s" % (wanted, error.strerror)})
            return
        self._line.send({"kind": "listening", "port": self._port.port})

    def _reach(self, message: Dict[str, Any]) -> Dict[str, Any]:
        from . import network

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
        _thread.start_new_thread(job, ())  # ``threading`` takes a third of what starting an agent does

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
        if answer["kind"] == "report":
            self._load_at = time.monotonic() + LOAD_AFTER_S

    def _run_done_jobs(self) -> None:
        while self._done_jobs:
            self._done_jobs.pop(0)()

    def _leave(self) -> NoReturn:
        self._close_port()
        if self._gauges is not None:
            self._gauges.end()
        if self._group is not None or process_tree.descendants(os.getpid()):
            self._ranks().close()
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
    guardian_pid = guardian.start_agent_under_guard(token)
    os.setsid()
    Agent(home, reading, writing, token, guardian_pid).run(first)
