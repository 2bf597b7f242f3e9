"""The system's ``ssh`` as carrier, for authentication that only it knows (Kerberos, host-based, hardware keys)."""

from __future__ import annotations

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.bootstrap import shell_line
from launcher.remote.local import ProcessStream
from launcher.remote.options import RemoteOptions


def ssh_argv(host: Host, options: RemoteOptions) -> list[str]:
    """The command line; what the user's ssh_config says holds where the hostfile is silent."""
    argv = ["ssh", "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={options.connect_timeout:.0f}"]
    argv += ["-o", "ServerAliveInterval=15", "-o", "EscapeChar=none", "-o", "ClearAllForwardings=yes"]
    if options.accept_new_host_keys:
        argv += ["-o", "StrictHostKeyChecking=accept-new"]
    if host.port is not None:
        argv += ["-p", str(host.port)]
    if host.user is not None:
        argv += ["-l", host.user]
    if host.key is not None:
        argv += ["-i", host.key]
    return [*argv, "--", host.name, shell_line(host.python)]


def open_openssh(host: Host, options: RemoteOptions) -> ProcessStream:
    """Start ``ssh`` to the host.

    Raises:
        UnreachableError: there is no ``ssh`` on this machine.
    """
    try:
        return ProcessStream(ssh_argv(host, options))
    except FileNotFoundError:
        raise UnreachableError(
            "ssh is not on PATH", "install the OpenSSH client, or leave --transport out"
        ) from None
