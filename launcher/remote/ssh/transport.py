"""Paramiko's transport with fewer threads and wake-ups, and a channel of it as a ``Stream``."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import paramiko
from paramiko.packet import Packetizer

KEPT_STDERR = 16 * 1024
KEEPALIVE_S = 30
#: how often a transport's thread looks up while a connection is being opened, and afterwards: Paramiko's own 0.1 s costs
#: 128 idle connections 7% of a core
OPENING_LOOK_S = 0.5
IDLE_LOOK_S = 10.0
EXIT_STATUS_S = 1.0
#: AES-GCM needs no separate MAC, which Paramiko computes and compares in Python
FIRST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")


class _Packetizer(Packetizer):  # type: ignore[misc]  # Paramiko is untyped here
    """Keeps the time of the handshake without a timer thread for each connection."""

    _until: float | None = None

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.lines: list[str] = []

    def readline(self, timeout: float) -> str:
        self.lines.append(super().readline(timeout).strip())
        return self.lines[-1]

    def start_handshake(self, timeout: float) -> None:
        self._until = time.monotonic() + timeout

    def handshake_timed_out(self) -> bool:
        return self._until is not None and time.monotonic() > self._until

    def complete_handshake(self) -> None:
        self._until = None


class Transport(paramiko.Transport):  # type: ignore[misc]  # Paramiko is untyped here
    """A transport that ends at once when closed, and keeps what the server said last.

    Attributes:
        farewell: the text of the server's disconnect message.
    """

    _active_check_timeout = OPENING_LOOK_S

    def __init__(self, sock: Any, limit_s: float, key_kinds: Sequence[str], **arguments: Any) -> None:
        super().__init__(sock, packetizer_class=_Packetizer, **arguments)
        self.farewell = ""
        self.handshake_timeout = limit_s
        self.channel_timeout = limit_s
        options = self.get_security_options()
        options.ciphers = _first(FIRST_CIPHERS, options.ciphers)
        known = [kind for kind in key_kinds if kind in self._key_info]
        options.key_types = list(dict.fromkeys([*known, *options.key_types]))

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Key kinds to ask for; Paramiko would ask for certificates of certificates too."""
        return tuple(dict.fromkeys(kind for kind in super().preferred_keys if kind in self._key_info))

    def stop_thread(self) -> None:
        """Wake the thread that waits in ``recv``: to close a socket does not."""
        with contextlib.suppress(OSError, AttributeError):
            self.sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(
            EOFError, OSError
        ):  # the jump host that it goes through may have closed before
            super().stop_thread()

    def _parse_disconnect(self, message: Any) -> None:
        message.get_int()
        self.farewell = message.get_text().strip()

    def said(self) -> str:
        """The last words of the server: its farewell, or the line it sent in place of a banner."""
        lines = [line for line in self.packetizer.lines if line]
        return self.farewell or (lines[-1] if lines and not lines[-1].startswith("SSH-") else "")

    def settle(self) -> None:
        """The connection is open: look up seldom from now on."""
        self.set_keepalive(KEEPALIVE_S)
        self.sock.settimeout(IDLE_LOOK_S)


def _first(wanted: Sequence[str], known: Sequence[str]) -> list[str]:
    chosen = [name for name in wanted if name in known]
    return [*chosen, *(name for name in known if name not in chosen)]


class SshStream:
    """A channel of an SSH transport as a stream.

    Args:
        release: called once when the stream is closed.
    """

    def __init__(self, channel: Any, release: Callable[[], None]) -> None:
        self._channel = channel
        self._transport = channel.get_transport()
        self._release = release
        self._stderr = b""

    def read(self, limit_s: float | None) -> bytes:
        """See ``Stream.read``."""
        self._channel.settimeout(limit_s)
        try:
            data: bytes = self._channel.recv(256 * 1024)
        except TimeoutError:
            raise TimeoutError from None
        self._keep_stderr()
        if not data and not self._has_ended():
            raise OSError(self._transport.said() or "the SSH connection broke")
        return data

    def _has_ended(self) -> bool:
        """True when the program ended by itself: its exit status, or the signal that it died of, follows its last word."""
        self._channel.status_event.wait(EXIT_STATUS_S)
        return bool(self._channel.exit_status != -1 or self._transport.is_active())

    def _keep_stderr(self) -> None:
        while self._channel.recv_stderr_ready():
            self._stderr = (self._stderr + self._channel.recv_stderr(65536))[-KEPT_STDERR:]

    def write(self, data: bytes) -> None:
        """See ``Stream.write``."""
        self._channel.sendall(data)

    def close(self) -> None:
        """See ``Stream.close``."""
        release, self._release = self._release, lambda: None
        release()

    def last_words(self) -> str:
        """See ``Stream.last_words``."""
        self._channel.status_event.wait(EXIT_STATUS_S)
        self._keep_stderr()
        code = self._channel.exit_status
        text = self._stderr.decode("utf-8", "replace").strip()[-1000:]
        return ", ".join(part for part in (f"exit code {code}" if code > 0 else "", text) if part)

    def why_refused(self) -> None:
        """See ``Stream.why_refused``: whatever SSH refuses was told when it was opened."""
