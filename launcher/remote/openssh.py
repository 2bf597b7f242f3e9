"""The system's ``ssh`` as carrier, for authentication that only it knows (Kerberos, host-based, hardware keys)."""

from __future__ import annotations

import contextlib
import os
import re

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.bootstrap import shell_line
from launcher.remote.failures import TryAgainError, UnknownHostKeyError
from launcher.remote.local import ProcessStream
from launcher.remote.options import RemoteOptions

#: ssh's own failure; a program that ends with it is not told apart
EXIT_SSH = 255
_BUSY = re.compile(r"(kex_exchange_identification|banner exchange|ssh_exchange_identification):|MaxStartups")
_REFUSED = re.compile(r"Connection (timed out|refused)|No route to host|Could not resolve")


def ssh_argv(host: Host, options: RemoteOptions) -> list[str]:
    """The command line; what the user's ssh_config says holds where the hostfile is silent."""
    settings = [
        "BatchMode=yes", f"ConnectTimeout={options.connect_timeout:.0f}", "ServerAliveInterval=15", "EscapeChar=none",
        "ClearAllForwardings=yes", "RemoteCommand=none", "ControlMaster=no", "ControlPersist=no",
    ]  # fmt: skip
    # whatever ssh_config says: without the option an unknown key is refused, a changed one always
    settings.append(f"StrictHostKeyChecking={'accept-new' if options.accept_new_host_keys else 'yes'}")
    words = ["-T", *(word for setting in settings for word in ("-o", setting)), *_login(host)]
    return ["ssh", *words, "--", host.name, shell_line(host.python)]


def _login(host: Host) -> list[str]:
    words = ["-p", str(host.port)] if host.port is not None else []
    words += ["-l", host.user] if host.user is not None else []
    return words + (["-i", os.path.expanduser(host.key)] if host.key is not None else [])


class SshProcess(ProcessStream):
    """A running ``ssh``; its own failures are told as errors of the host."""

    def __init__(self, host: Host, options: RemoteOptions) -> None:
        super().__init__(ssh_argv(host, options))
        self._host = host
        self._by_hand = " ".join(["ssh", *_login(host), host.name, "true"])

    def close(self) -> None:
        """See ``Stream.close``; ``ssh`` itself would wait for a host that does not answer."""
        super().close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    def why_refused(self) -> UnreachableError | None:
        """See ``Stream.why_refused``."""
        if self._wait() != EXIT_SSH:
            return None
        lines = [line.strip() for line in self._stderr.decode("utf-8", "replace").split("\n")]
        said = "\n".join(line for line in lines if line and not line.startswith("@"))
        where, last = self._host.name, said.split("\n")[-1]
        if "HOST IDENTIFICATION HAS CHANGED" in self._stderr.decode("utf-8", "replace"):
            return UnreachableError(
                f"{where}: its host key is not the one in known_hosts",
                f"if the host was reinstalled: ssh-keygen -R {where}, then accept the new key",
            )
        if "Host key verification failed" in said or "host key is known for" in said:
            return UnknownHostKeyError(where, "", None, self._by_hand)
        if _BUSY.search(said) and not _REFUSED.search(said):
            return TryAgainError(f"{where}: the server hung up ({last})")
        return UnreachableError(f"{where}: {last or 'ssh failed'}", f"test it with: {self._by_hand}")


def open_openssh(host: Host, options: RemoteOptions) -> SshProcess:
    """Start ``ssh`` to the host.

    Raises:
        UnreachableError: there is no ``ssh`` on this machine.
    """
    try:
        return SshProcess(host, options)
    except FileNotFoundError:
        raise UnreachableError(
            "ssh is not on PATH", "install the OpenSSH client, or leave --transport out"
        ) from None
