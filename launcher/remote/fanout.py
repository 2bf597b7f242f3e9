"""Open the sessions of a run side by side, bounded; one bad host never hides the others. Runs on the head."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.options import RemoteOptions
from launcher.remote.session import Inbox, Session, Stream

#: early agents must not take the head for lost while late hosts are still being reached
PING_EVERY_S = 0.25


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
    openers = _make_openers(hosts, options)
    results: queue.SimpleQueue[Opened] = queue.SimpleQueue()
    work: queue.SimpleQueue[int] = queue.SimpleQueue()
    for node in range(len(hosts)):
        work.put(node)

    def work_off() -> None:
        while True:
            try:
                node = work.get_nowait()
            except queue.Empty:
                return
            results.put(_open_one(node, hosts[node], openers[node], inbox, greetings[node]))

    for _ in range(min(options.fanout, len(hosts))):
        threading.Thread(target=work_off, daemon=True).start()
    outcome = _collect(hosts, results, tick)
    errors = [opened.error for opened in outcome if opened.error is not None]
    sessions = [opened.session for opened in outcome if opened.session is not None]
    if errors:
        for session in sessions:
            session.close()
        hints = list(dict.fromkeys(error.hint for error in errors if error.hint))
        raise UnreachableError("\n".join(error.message for error in errors), "\n".join(hints[:3]))
    return sessions


def _collect(
    hosts: Sequence[Host], results: queue.SimpleQueue[Opened], tick: Callable[[list[str]], None]
) -> list[Opened]:
    outcome: dict[int, Opened] = {}
    pinged = time.monotonic()
    try:
        while len(outcome) < len(hosts):
            try:
                opened = results.get(timeout=0.2)
                outcome[opened.node] = opened
            except queue.Empty:
                tick([host.name for node, host in enumerate(hosts) if node not in outcome])
            if time.monotonic() - pinged > PING_EVERY_S:
                pinged = time.monotonic()
                for session in [opened.session for opened in outcome.values() if opened.session is not None]:
                    session.send({"kind": "ping"})
    except BaseException:
        for opened in outcome.values():
            if opened.session is not None:
                opened.session.close()
        raise
    return [outcome[node] for node in range(len(hosts))]


Opener = Callable[[], Stream]


def _make_openers(hosts: Sequence[Host], options: RemoteOptions) -> list[Opener]:
    """One function a host that opens its stream; whatever is not safe in threads happens here."""
    remote = [host for host in hosts if not host.is_local]
    connector: Any = None
    if remote and options.transport == "ssh":
        from launcher.remote.ssh import SshConnector

        connector = SshConnector(options)
    return [_opener(host, options, connector) for host in hosts]


def _opener(host: Host, options: RemoteOptions, connector: Any) -> Opener:
    if host.is_local:
        from launcher.remote.local import open_local

        return lambda: open_local(host)
    if options.transport == "openssh":
        from launcher.remote.openssh import open_openssh

        return lambda: open_openssh(host, options)
    from launcher.remote.ssh import TryAgainError

    def open_ssh() -> Stream:
        deadline = time.monotonic() + options.retry_for
        pause = 0.1
        connection = connections.pop()
        while True:
            try:
                return connector.open(host, connection)  # type: ignore[no-any-return]
            except TryAgainError as error:
                if time.monotonic() + pause > deadline:
                    hint = "sshd drops connections above MaxStartups; lower --fanout"
                    raise UnreachableError(f"{error} (tried for {options.retry_for:.0f} s)", hint) from None
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  spreads retries, keeps no secret
            pause = min(pause * 2, 3.0)

    connections = [connector.prepare(host)]
    return open_ssh


def _open_one(
    node: int, host: Host, opener: Opener, inbox: Inbox, greeting: tuple[str, dict[str, Any]]
) -> Opened:
    try:
        session = Session(node, host, opener(), inbox)
        session.start(*greeting)
    except UnreachableError as error:
        return Opened(node, error=error)
    except Exception as error:  # whatever a library raises for one host must not lose the others
        return Opened(node, error=UnreachableError(f"{host.name}: {type(error).__name__}: {error}"))
    return Opened(node, session=session)
