"""SshTarget -> a connected socket: TCP, or what a ProxyCommand gives. Runs on the head; needs no SSH library."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import tempfile
import time
from typing import IO

from launcher.base.errors import UnreachableError
from launcher.remote.ssh_target import SshTarget

PROXY_END_S = 0.5


class QuickSocket(socket.socket):
    """A TCP socket that sends small packets at once and acknowledges what comes at once.

    sshd leaves Nagle's algorithm on, so that each of its small packets waits for our acknowledgement, which the kernel
    would delay by 40 ms; the kernel forgets TCP_QUICKACK, so it is asked for before each read.
    """

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """See ``socket.recv``."""
        with contextlib.suppress(OSError):
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return super().recv(size, flags)


class ProxySocket(socket.socket):
    """Our end of the pair of sockets that a ProxyCommand has as stdin and stdout."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def close(self) -> None:
        """Close it and end the command, which sees end of file first."""
        if self.fileno() == -1:
            return
        super().close()
        try:
            self.process.wait(PROXY_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def said(self) -> str:
        """The last line that the command wrote to stderr."""
        with contextlib.suppress(OSError, ValueError):
            self.errors.seek(0)
            lines = self.errors.read()[-2000:].decode("utf-8", "replace").strip().split("\n")
            return lines[-1].strip()
        return ""


def dial(target: SshTarget, limit_s: float) -> socket.socket:
    """Connect to a host that is not behind a jump host.

    Raises:
        UnreachableError: its name is not known, or no address of it can be connected to within ``limit_s``.
    """
    try:
        if target.proxy_command is not None:
            return _run_proxy(target.proxy_command)
        return _connect(target, limit_s)
    except OSError as error:
        raise explain_socket(target, error) from None


def explain_socket(target: SshTarget, error: OSError) -> UnreachableError:
    """Name the host and what the system says."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return UnreachableError(f"{target.where}: {error.strerror}", "raise it: ulimit -n")
    if isinstance(error, socket.gaierror):
        why = f"its name is not known ({error.strerror})"
    elif isinstance(error, TimeoutError):
        why = "no answer in time"
    else:
        why = error.strerror or str(error)
    return UnreachableError(f"{target.where}: {why}", f"test it with: {target.by_hand()}")


def _connect(target: SshTarget, limit_s: float) -> socket.socket:
    deadline = time.monotonic() + limit_s
    found = socket.getaddrinfo(target.hostname, target.port, target.family, socket.SOCK_STREAM)
    failure = OSError(f"{target.hostname} has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        # an address that does not answer must leave time for the next
        share_s = max(0.1, (deadline - time.monotonic()) / (len(found) - number))
        sock = QuickSocket(family, kind, protocol)
        try:
            sock.settimeout(share_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if target.bind:
                sock.bind((target.bind, 0))
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure


def _run_proxy(command: str) -> ProxySocket:
    ours, theirs = socket.socketpair()
    errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the socket
    with theirs:
        # as ssh does: the user's shell, and no other process between; a session of its own, since Ctrl-C is the head's
        process = subprocess.Popen(
            [os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=errors.fileno(),
            start_new_session=True,
        )
    proxy = ProxySocket(fileno=ours.detach())
    proxy.process, proxy.errors = process, errors
    return proxy
