"""A jump host: one connection that all hosts behind it share. Runs on the head."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import paramiko

from launcher.base.errors import UnreachableError
from launcher.remote.attempt import Attempt
from launcher.remote.failures import TryAgainError
from launcher.remote.ssh.explain import explain
from launcher.remote.ssh_target import SshTarget

Connect = Callable[[SshTarget, Any, Attempt], Any]


class Jump:
    """Opened by the first host that needs it, closed when the last one has left.

    Args:
        connect: makes an authenticated connection to a target over a socket (None: over TCP).
        fanout: hosts that may be opened through it at a time.
        beyond: the jump host that it is itself behind.

    Attributes:
        slots: to be held while a host is opened through it.
    """

    def __init__(self, target: SshTarget, connect: Connect, fanout: int, beyond: Jump | None) -> None:
        self.slots = threading.Semaphore(fanout)
        self._target = target
        self._connect = connect
        self._beyond = beyond
        self._lock = threading.Lock()
        self._connection: Any = None
        self._failure: UnreachableError | None = None
        self._members = 0

    def join(self) -> None:
        """One more host needs it."""
        with self._lock:
            self._members += 1

    def leave(self) -> None:
        """One host less."""
        with self._lock:
            self._members -= 1
            connection = self._connection if self._members == 0 else None
            if connection is not None:
                self._connection = None
        if connection is not None:
            connection.client.close()
            if self._beyond is not None:
                self._beyond.leave()

    def channel(self, target: SshTarget) -> Any:
        """A way to a host behind it, as a socket.

        Raises:
            UnreachableError: the jump host cannot be used, or cannot connect to the host.
        """
        try:
            transport = self._open().transport
        except UnreachableError as error:
            raise type(error)(f"{target.name}: through {error.message}", error.hint) from None
        try:
            return transport.open_channel(
                "direct-tcpip", (target.hostname, target.port), ("", 0), timeout=transport.channel_timeout
            )
        except paramiko.ChannelException as error:
            place = f"{target.hostname}:{target.port}"
            raise UnreachableError(
                f"{target.where}: {self._target.name} cannot connect to {place} ({error.text})"
            ) from None
        except Exception as error:
            raise explain(target, error, transport.said()) from error

    def _open(self) -> Any:
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._connection is not None and self._connection.is_connected:
                return self._connection
            if self._beyond is not None:
                self._beyond.join()
            try:
                way = self._beyond.channel(self._target) if self._beyond is not None else None
                self._connection = self._connect(self._target, way, Attempt())
            except UnreachableError as error:
                if self._beyond is not None:
                    self._beyond.leave()
                if not isinstance(error, TryAgainError):
                    self._failure = error  # the other hosts would only meet the same
                raise
            self._connection.transport.settle()
            return self._connection
