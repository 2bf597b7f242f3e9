"""What went wrong while a host was opened, as an error that a user can act on."""

from __future__ import annotations

import paramiko

from launcher.base.errors import UnreachableError
from launcher.remote.dial import explain_socket
from launcher.remote.failures import TryAgainError
from launcher.remote.ssh_target import SshTarget

#: what sshd says before its banner when it turns a connection away for now
BUSY = ("Exceeded MaxStartups", "Not allowed at this time")
#: what Paramiko says when the other side hung up during the key exchange or before
DROPPED = (
    "Error reading SSH protocol banner",
    "No existing session",
    "SSH session not active",
    "Negotiation failed",
)


def explain(target: SshTarget, error: Exception, said: str = "", timed_out: bool = False) -> UnreachableError:
    """Name host and cause.

    Args:
        said: what the server, or the ProxyCommand, said last.
        timed_out: the attempt took as long as it may.
    """
    where = target.where
    hint = f"test it with: {target.by_hand()}"
    if isinstance(error, UnreachableError):
        return error
    if isinstance(error, paramiko.IncompatiblePeer):
        return UnreachableError(
            f"{where}: no common SSH algorithms: {error}", f"{hint}; if that works, add --transport openssh"
        )
    if timed_out or isinstance(error, TimeoutError) or "timeout" in str(error).lower():
        return UnreachableError(f"{where}: no answer in time{f' ({said})' if said else ''}", hint)
    if said and not said.startswith("SSH-") and not said.startswith(BUSY) and _is_dropped(error):
        return UnreachableError(f"{where}: no SSH server speaks there: {said[:200]}", hint)
    if _is_dropped(error):
        return TryAgainError(f"{where}: the server hung up{f' ({said})' if said.startswith(BUSY) else ''}")
    if isinstance(error, paramiko.ChannelException):
        return UnreachableError(
            f"{where}: the server allows no session: {error.text} (MaxSessions, or a forced command?)", hint
        )
    if isinstance(error, OSError):
        return explain_socket(target, error)
    text = str(error) if isinstance(error, paramiko.SSHException) else f"{type(error).__name__}: {error}"
    return UnreachableError(f"{where}: {text}{f' ({said})' if said else ''}", hint)


def _is_dropped(error: Exception) -> bool:
    """sshd beyond MaxStartups hangs up at random before or during the key exchange."""
    if isinstance(error, (ConnectionResetError, BrokenPipeError, EOFError)):
        return True
    return isinstance(error, paramiko.SSHException) and any(mark in str(error) for mark in DROPPED)
