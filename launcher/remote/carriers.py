"""Host -> a stream with the bootstrap running behind it, by whatever carries it there. Runs on the head, in many threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.attempt import Attempt
from launcher.remote.bootstrap import shell_line
from launcher.remote.dial import dial
from launcher.remote.local import open_local
from launcher.remote.openssh import open_openssh
from launcher.remote.options import RemoteOptions
from launcher.remote.session import START_LIMIT_S, Stream
from launcher.remote.srun import SrunStep
from launcher.remote.ssh_config import SshConfig
from launcher.remote.ssh_target import SshTarget, make_target

#: logins at a time at one server that several hosts turn out to be: sshd drops some above ten
SAME_SERVER_FANOUT = 8


class Carriers:
    """Opens streams to the hosts of one run."""

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        self._config = SshConfig()
        self._connector: Any = None
        self._step: SrunStep | None = None
        self._nodes: dict[str, int] = {}
        self._is_ready = threading.Event()
        self._gates: dict[tuple[str, int], threading.Semaphore] = {}
        self._lock = threading.Lock()

    def load(self, hosts: Sequence[Host]) -> None:
        """Load what the hosts need. Threads that need it wait meanwhile, with their TCP connections already made.

        Raises:
            UnreachableError: Fabric is not installed.
        """
        try:
            remote = [host for host in hosts if not host.is_local]
            by_step = [host for host in remote if self._is_by_step(host)]
            if by_step:
                self._nodes = {host.name: node for node, host in enumerate(by_step)}
                self._step = SrunStep(by_step)
            elif remote and self._options.transport in ("auto", "ssh"):
                from launcher.remote.ssh.connector import SshConnector

                self._connector = SshConnector(self._options)
        except ImportError as error:
            raise UnreachableError(
                f"SSH needs Fabric: {error}", "pip install fabric, or --transport openssh"
            ) from None
        finally:
            self._is_ready.set()

    def open(self, host: Host, attempt: Attempt) -> Stream:
        """Start the bootstrap on a host.

        Raises:
            TryAgainError: the server is busy.
            UnreachableError: the host cannot be reached.
        """
        if host.is_local:
            return open_local(host)
        if self._is_by_step(host):
            attempt.enter("starting srun", START_LIMIT_S)
            self._is_ready.wait()
            if self._step is None:
                raise UnreachableError(f"{host.name}: srun could not be started")
            return self._step.stream(self._nodes[host.name])
        if self._options.transport == "openssh":
            return open_openssh(host, self._options)
        target = make_target(host, self._config, self._options)
        with self._gate(target):
            return self._open_ssh(target, shell_line(host.python), attempt)

    def _is_by_step(self, host: Host) -> bool:
        return host.job is not None and self._options.transport in ("auto", "srun")

    def _gate(self, target: SshTarget) -> threading.Semaphore:
        server = (target.hostname.lower(), target.port)
        with self._lock:
            return self._gates.setdefault(server, threading.Semaphore(SAME_SERVER_FANOUT))

    def _open_ssh(self, target: SshTarget, line: str, attempt: Attempt) -> Stream:
        limit_s = self._options.connect_timeout
        attempt.enter("connecting", limit_s)
        sock = None
        if target.jump is None:
            sock = dial(target, limit_s)
            attempt.watch(sock.close)
        self._is_ready.wait()
        if self._connector is None:
            raise UnreachableError(f"{target.name}: SSH could not be loaded")
        return self._connector.open(target, sock, line, attempt)  # type: ignore[no-any-return]
