"""SshTarget and socket -> an open channel with a shell line running in it; jump hosts are shared. Runs on the head."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import fabric
import paramiko

from launcher.remote.attempt import Attempt
from launcher.remote.dial import ProxySocket, dial
from launcher.remote.known_hosts import KnownHosts
from launcher.remote.options import RemoteOptions
from launcher.remote.ssh.explain import explain
from launcher.remote.ssh.host_key import HostKeyCheck
from launcher.remote.ssh.jump import Jump
from launcher.remote.ssh.login import KeyRing, Login
from launcher.remote.ssh.transport import SshStream, Transport
from launcher.remote.ssh_target import SshTarget


class SshConnector:
    """Opens the SSH connections of one run, from many threads at a time; reads each key and known_hosts file once."""

    def __init__(self, options: RemoteOptions) -> None:
        self._limit_s = options.connect_timeout
        self._jump_fanout = options.jump_fanout
        # lazy: no fabric.yaml of this machine has a say in how hosts are reached; ssh_config has been followed already
        self._config = fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig())
        self._making = threading.Lock()
        self._known_hosts = KnownHosts()
        self._ring = KeyRing()
        self._jumps: dict[SshTarget, Jump] = {}
        # what goes wrong is raised; Paramiko would print it, with tracebacks, as well
        logging.getLogger("paramiko").addHandler(logging.NullHandler())
        logging.getLogger("paramiko").setLevel(logging.CRITICAL)

    def open(self, target: SshTarget, sock: socket.socket | None, line: str, attempt: Attempt) -> SshStream:
        """Connect, check the host's key, log in and run a shell line.

        Args:
            sock: a connected socket, for a host that is not behind a jump host; None to make one.

        Raises:
            TryAgainError: the server dropped the connection; another attempt may get through.
            UnreachableError: it will not work; the message says why and how to test it by hand.
        """
        Login(target, self._ring).check_named_key()
        if target.jump is None:
            return self._run(self.connect(target, sock, attempt), target, line, lambda: None)
        attempt.enter(f"waiting for jump host {target.jump.name}")
        jump = self._jump_to(target.jump)
        with jump.slots:
            jump.join()
            try:
                attempt.enter("connecting", self._limit_s)
                return self._run(
                    self.connect(target, jump.channel(target), attempt), target, line, jump.leave
                )
            except BaseException:
                jump.leave()
                raise

    def _run(self, connection: Any, target: SshTarget, line: str, leave: Callable[[], None]) -> SshStream:
        def close() -> None:
            connection.client.close()
            leave()

        try:
            channel = connection.transport.open_session(timeout=self._limit_s)
            channel.exec_command(line)
            connection.transport.settle()
        except Exception as error:
            connection.client.close()
            raise explain(target, error, connection.transport.said()) from error
        return SshStream(channel, close)

    def connect(self, target: SshTarget, sock: Any, attempt: Attempt) -> Any:
        """An authenticated connection over a socket; the socket is closed when this fails.

        Raises:
            UnreachableError: see ``open``.
        """
        begun = time.monotonic()
        made: list[Transport] = []
        connection: Any = None
        try:
            sock = sock or dial(target, self._limit_s)
            attempt.watch(sock.close)
            connection = self._make_connection(target, sock, made)
            connection.open()
        except Exception as error:
            if connection is not None:
                connection.client.close()
            if sock is not None:
                sock.close()
            said = (made[0].said() if made else "") or (sock.said() if isinstance(sock, ProxySocket) else "")
            raise explain(target, error, said, time.monotonic() - begun >= self._limit_s) from error
        attempt.watch(connection.client.close)
        return connection

    def _make_connection(self, target: SshTarget, sock: Any, made: list[Transport]) -> Any:
        check = HostKeyCheck(target, self._known_hosts)

        def make_transport(over: Any, **arguments: Any) -> Transport:
            made.append(Transport(over, self._limit_s, check.kinds(), **arguments))
            return made[0]

        # Fabric's settings are not made for threads: connections made at the same time may lack attributes
        with self._making:
            connection = fabric.Connection(
                target.hostname,
                user=target.user,
                port=target.port,
                config=self._config,
                gateway=False,
                forward_agent=False,
                connect_timeout=max(1, round(self._limit_s)),
                connect_kwargs={
                    "sock": sock,
                    "banner_timeout": self._limit_s,
                    "auth_timeout": self._limit_s,
                    "auth_strategy": Login(target, self._ring),
                    "transport_factory": make_transport,
                },
            )
        connection.client.set_missing_host_key_policy(check)
        return connection

    def _jump_to(self, target: SshTarget) -> Jump:
        beyond = None if target.jump is None else self._jump_to(target.jump)
        with self._making:
            if target not in self._jumps:
                self._jumps[target] = Jump(target, self.connect, self._jump_fanout, beyond)
            return self._jumps[target]
