"""Open the sessions of a run side by side, bounded; one bad host never hides the others. Runs on the head."""

from __future__ import annotations

import contextlib
import queue
import random
import resource
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.base.errors import UnreachableError, UsageError
from launcher.hosts.host import Host
from launcher.remote.attempt import Attempt
from launcher.remote.bootstrap import make_payload
from launcher.remote.carriers import Carriers
from launcher.remote.failures import TryAgainError, combine
from launcher.remote.options import RemoteOptions
from launcher.remote.session import START_LIMIT_S, Inbox, Session, Stream

#: early agents must not take the head for lost while late hosts are still being reached
PING_EVERY_S = 2.0
TICK_S = 0.2
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 3.0
#: open files of the head for itself, and the most that one host needs
OWN_FILES, FILES_PER_HOST = 64, 4


@dataclass(frozen=True, slots=True)
class Opened:
    """The outcome for one host: a session or an error."""

    node: int
    session: Session | None = None
    error: UnreachableError | None = None


def open_sessions(
    hosts: Sequence[Host],
    options: RemoteOptions,
    inbox: Inbox,
    greetings: Sequence[tuple[str, dict[str, Any]]],
    tick: Callable[[list[str]], None],
) -> list[Session]:
    """Open one session a host and start its agent.

    Args:
        greetings: for each host the run's token on that node and the agent's first message.
        tick: called some five times a second with the names of hosts still awaited; what it raises ends the wait.

    Raises:
        UnreachableError: lists every host that failed; sessions that were opened are closed again.
    """
    raise_file_limit(len(hosts))
    make_payload()  # here, once, and not in every thread
    fanout = _Fanout(hosts, options, inbox, greetings)
    fanout.start()
    outcome = fanout.collect(tick)
    errors = [opened.error for opened in outcome if opened.error is not None]
    sessions = [opened.session for opened in outcome if opened.session is not None]
    if errors:
        for session in sessions:
            session.close()
        error = combine(errors)
        error.nodes = tuple(opened.node for opened in outcome if opened.error is not None)
        raise error
    return sessions


def raise_file_limit(num_hosts: int) -> None:
    """See that this process may open as many files as its hosts need.

    Raises:
        UsageError: the hard limit is lower than that.
    """
    needed = OWN_FILES + FILES_PER_HOST * num_hosts
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{num_hosts} hosts need {needed} open files, this machine allows {hard}",
            "raise the hard limit: ulimit -Hn, nofile in /etc/security/limits.conf",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


class _Fanout:
    """All hosts of a run on their way; threads open them, the caller of ``collect`` waits for all."""

    def __init__(
        self,
        hosts: Sequence[Host],
        options: RemoteOptions,
        inbox: Inbox,
        greetings: Sequence[tuple[str, dict[str, Any]]],
    ) -> None:
        self._hosts, self._options, self._inbox, self._greetings = hosts, options, inbox, greetings
        self._carriers = Carriers(options)
        self._attempts = [Attempt() for _ in hosts]
        self._work: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Opened] = queue.SimpleQueue()
        self._outcome: dict[int, Opened] = {}
        self._pinged = time.monotonic()
        silence_s = min((float(first.get("lost_after", 10.0)) for _, first in greetings), default=10.0)
        self._ping_every_s = min(PING_EVERY_S, silence_s / 4)

    def start(self) -> None:
        """Begin: at most ``fanout`` hosts at a time."""
        for node in range(len(self._hosts)):
            self._work.put(node)
        for _ in range(min(self._options.fanout, len(self._hosts))):
            threading.Thread(target=self._work_off, daemon=True, name="open").start()
        self._carriers.load(self._hosts)

    def _work_off(self) -> None:
        while True:
            try:
                node = self._work.get_nowait()
            except queue.Empty:
                return
            self._results.put(self._open_one(node))

    def _open_one(self, node: int) -> Opened:
        host = self._hosts[node]
        deadline: float | None = None
        pause_s = FIRST_PAUSE_S
        try:
            while True:
                try:
                    return Opened(node, session=self._start_session(node))
                except TryAgainError as error:
                    deadline = deadline or time.monotonic() + self._options.retry_for
                    if time.monotonic() + pause_s > deadline:
                        hint = "sshd drops connections above MaxStartups; lower --fanout"
                        tried = f"{error.message} (tried for {self._options.retry_for:.0f} s)"
                        return Opened(node, error=UnreachableError(tried, hint))
                self._attempts[node].enter("waiting to try again")
                time.sleep(pause_s * random.uniform(0.5, 1.5))  # noqa: S311  spreads retries, keeps no secret
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        except UnreachableError as error:
            return Opened(node, error=error)
        except Exception as error:  # whatever a library raises for one host must not lose the others
            return Opened(node, error=UnreachableError(f"{host.name}: {type(error).__name__}: {error}"))

    def _start_session(self, node: int) -> Session:
        attempt = self._attempts[node]
        stream: Stream = self._carriers.open(self._hosts[node], attempt)
        try:
            attempt.watch(stream.close)
            attempt.enter("starting Python", START_LIMIT_S)
            session = Session(node, self._hosts[node], stream, self._inbox)
            session.start(*self._greetings[node])
            attempt.done()
        except BaseException:
            stream.close()
            raise
        return session

    def collect(self, tick: Callable[[list[str]], None]) -> list[Opened]:
        """Wait for all hosts; those that hang are given up and count as failed."""
        looked = time.monotonic()
        try:
            while len(self._outcome) < len(self._hosts):
                try:
                    opened = self._results.get(timeout=TICK_S)
                    self._outcome.setdefault(opened.node, opened)
                except queue.Empty:
                    pass
                if time.monotonic() - looked >= TICK_S:
                    looked = time.monotonic()
                    self._give_up_overdue()
                    self._ping()
                    tick([host.name for node, host in enumerate(self._hosts) if node not in self._outcome])
        except BaseException:
            self._give_up_all()
            raise
        return [self._outcome[node] for node in range(len(self._hosts))]

    def _give_up_overdue(self) -> None:
        for node, attempt in enumerate(self._attempts):
            why = "" if node in self._outcome else attempt.overdue()
            if why:
                attempt.give_up()
                self._outcome[node] = Opened(node, error=UnreachableError(f"{self._hosts[node].name}: {why}"))

    def _ping(self) -> None:
        if time.monotonic() - self._pinged >= self._ping_every_s:
            self._pinged = time.monotonic()
            for opened in self._outcome.values():
                if opened.session is not None:
                    opened.session.send({"kind": "ping"})

    def _give_up_all(self) -> None:
        for node, attempt in enumerate(self._attempts):
            if node not in self._outcome:
                attempt.give_up()
        with contextlib.suppress(queue.Empty):
            while True:
                opened = self._results.get_nowait()
                self._outcome.setdefault(opened.node, opened)
        for opened in self._outcome.values():
            if opened.session is not None:
                opened.session.close()
