"""A host over SSH through Fabric: the only module that imports it.

Fabric connects (ssh_config, keys, agent, jump hosts, time-outs); the agent then speaks over a raw channel of its
transport. Fabric itself accepts any host key and reads no known_hosts, so host keys are our business here.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import fabric
import paramiko

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.bootstrap import shell_line
from launcher.remote.options import RemoteOptions
from launcher.remote.ssh_config import known_hosts_files, lookup_name, read_ssh_config

KEPT_STDERR = 16 * 1024
KEEPALIVE_S = 30


class TryAgainError(Exception):
    """The server dropped the connection before authentication: it is busy (MaxStartups), or just coming up."""


class ChannelStream:
    """A channel of an SSH transport as a stream."""

    def __init__(self, connection: Any, channel: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._stderr = b""

    def read(self, limit_s: float | None) -> bytes:
        """See ``Stream.read``."""
        self._channel.settimeout(limit_s)
        try:
            data: bytes = self._channel.recv(256 * 1024)
        except TimeoutError:
            raise TimeoutError from None
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(4096))[-KEPT_STDERR:]
        if not data and not self._connection.client.get_transport():
            raise OSError("the SSH connection broke")
        return data

    def write(self, data: bytes) -> None:
        """See ``Stream.write``."""
        self._channel.sendall(data)

    def close(self) -> None:
        """See ``Stream.close``."""
        self._channel.shutdown_write()
        self._connection.close()

    def last_words(self) -> str:
        """See ``Stream.last_words``."""
        code = self._channel.recv_exit_status() if self._channel.status_event.wait(1.0) else 0
        while self._channel.recv_stderr_ready():
            self._stderr += self._channel.recv_stderr(4096)
        text = self._stderr.decode("utf-8", "replace").strip()[-1000:]
        if code == -1:
            return text or "the SSH connection broke"
        return ", ".join(part for part in (f"exit code {code}" if code else "", text) if part)


class SshConnector:
    """Opens SSH connections of one run: one reading of ssh_config, one connection to each jump host.

    Connections are made in the caller's thread and opened in others: making them in threads races in Fabric.
    """

    def __init__(self, options: RemoteOptions) -> None:
        self._options = options
        config = paramiko.SSHConfig.from_text(read_ssh_config())
        self._config = fabric.Config(ssh_config=config)
        self._jumps: dict[tuple[str, str, int], Any] = {}
        self._jump_slots: dict[tuple[str, str, int], threading.Semaphore] = {}
        self._jump_lock = threading.Lock()
        self._known_hosts_lock = threading.Lock()

    def prepare(self, host: Host) -> Any:
        """Make the connection object for a host, not yet opened."""
        arguments: dict[str, Any] = {"banner_timeout": self._options.connect_timeout}
        arguments["auth_timeout"] = self._options.connect_timeout
        if host.key is not None:
            arguments["key_filename"] = [os.path.expanduser(host.key)]
        connection = fabric.Connection(
            host.name,
            user=host.user,
            port=host.port,
            config=self._config,
            connect_timeout=max(1, round(self._options.connect_timeout)),
            connect_kwargs=arguments,
        )
        self._check_host_keys(connection)
        connection.gateway = self._share_jump(connection.gateway)
        return connection

    def _share_jump(self, gateway: Any) -> Any:
        if gateway is None or isinstance(gateway, str):
            return gateway
        identity = (gateway.host, gateway.user, gateway.port)
        if identity not in self._jumps:
            self._check_host_keys(gateway)
            gateway.connect_timeout = max(1, round(self._options.connect_timeout))
            gateway.gateway = self._share_jump(gateway.gateway)
            self._jumps[identity] = gateway
            self._jump_slots[identity] = threading.Semaphore(self._options.jump_fanout)
        return self._jumps[identity]

    def _check_host_keys(self, connection: Any) -> None:
        client = connection.client
        for path in known_hosts_files(connection.ssh_config):
            if os.path.exists(path):
                client.load_system_host_keys(path)
        name = lookup_name(connection.host, connection.port)
        alias = connection.ssh_config.get("hostkeyalias")
        if alias is not None:
            # the key is looked up under the alias alone, on whatever port (ssh_config(5))
            client._system_host_keys.pop(name, None)
            for kind, key in (client._system_host_keys.lookup(alias) or {}).items():
                client.get_host_keys().add(name, kind, key)
        policy = _AcceptNew(self._known_hosts_lock, known_hosts_files(connection.ssh_config)[0], alias)
        accept = self._options.accept_new_host_keys
        client.set_missing_host_key_policy(policy if accept else paramiko.RejectPolicy())

    def open(self, host: Host, connection: Any) -> ChannelStream:
        """Connect, authenticate and run the bootstrap.

        Raises:
            TryAgainError: the server dropped the connection; another attempt may get through.
            UnreachableError: it will not work; the message says why and how to test it by hand.
        """
        try:
            self._connect(connection)
            channel = connection.transport.open_session(timeout=self._options.connect_timeout)
            channel.exec_command(shell_line(host.python))
        except Exception as error:
            connection.close()
            raise self._explain(host, connection, error) from error
        return ChannelStream(connection, channel)

    def _connect(self, connection: Any) -> None:
        jump = connection.gateway
        if jump is None or isinstance(jump, str):
            connection.open()
        else:
            with self._jump_slots[(jump.host, jump.user, jump.port)]:
                with self._jump_lock:
                    jump.open()
                connection.open()
        transport = connection.transport
        transport.set_keepalive(KEEPALIVE_S)
        if isinstance(transport.sock, socket.socket):
            transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _explain(self, host: Host, connection: Any, error: Exception) -> Exception:
        where = f"{host.name} ({connection.user}@{connection.host}:{connection.port})"
        by_hand = f"test it with: ssh -p {connection.port} {connection.user}@{connection.host} true"
        text = str(error) or type(error).__name__
        if isinstance(error, paramiko.BadHostKeyException):
            name = lookup_name(connection.host, connection.port)
            return UnreachableError(
                f"{where}: its host key is not the one in known_hosts",
                f"if the host was reinstalled: ssh-keygen -R '{name}', then accept the new key",
            )
        if "not found in known_hosts" in text:
            return UnreachableError(
                f"{where}: its host key is unknown",
                f"ssh-keyscan -p {connection.port} {connection.host} >> ~/.ssh/known_hosts after comparing the fingerprint, "
                "or --accept-new-host-keys",
            )
        if isinstance(error, paramiko.PasswordRequiredException):
            return UnreachableError(
                f"{where}: the private key is encrypted", "load it once with: ssh-add KEY"
            )
        if isinstance(error, paramiko.AuthenticationException):
            keys = connection.connect_kwargs.get("key_filename") or ["default keys"]
            return UnreachableError(
                f"{where}: authentication failed ({text}); tried the agent and {', '.join(keys)}",
                f"{by_hand}; if that works, add --transport openssh",
            )
        if _is_dropped(error):
            return TryAgainError(f"{where}: {text}")
        return UnreachableError(f"{where}: {_plain(error)}", by_hand)


def _is_dropped(error: Exception) -> bool:
    """sshd beyond MaxStartups closes at random before or during the key exchange."""
    if isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError)):
        return True
    text = str(error)
    marks = (
        "Error reading SSH protocol banner",
        "No existing session",
        "Connection reset",
        "SSH session not active",
    )
    return isinstance(error, paramiko.SSHException) and any(mark in text for mark in marks)


def _plain(error: Exception) -> str:
    """One line for the user: strerror for socket errors, the name not found, or the text as it is."""
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        return "; ".join(sorted({reason.strerror or str(reason) for reason in error.errors.values()}))
    if isinstance(error, socket.gaierror):
        return f"its name is not known ({error.strerror})"
    if isinstance(error, (TimeoutError, socket.timeout)):
        return "no answer (timed out)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}"


class _AcceptNew(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # Paramiko is untyped here
    """Write an unknown key to known_hosts, as ``StrictHostKeyChecking=accept-new`` does."""

    def __init__(self, lock: threading.Lock, path: str, alias: str | None) -> None:
        self._lock = lock
        self._path = path
        self._alias = alias

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        line = f"{self._alias or hostname} {key.get_name()} {key.get_base64()}\n"
        with self._lock:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            with open(self._path, "a", encoding="ascii") as file:
                file.write(line)
