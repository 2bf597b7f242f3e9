"""Host and ssh_config in, one SshTarget out: everything needed to reach and check that host over SSH. Pure but for look-ups
of files that exist. Runs on the head."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.known_hosts import lookup_name
from launcher.remote.options import RemoteOptions
from launcher.remote.ssh_config import Settings, SshConfig, expand, expand_path, local_user

USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
#: what ssh tries when nothing is named, in its order
DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "id_xmss")
MAX_JUMPS = 8
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}


@dataclass(frozen=True, slots=True)
class SshTarget:
    """How to reach one host.

    Attributes:
        name: as the user named it; what messages say.
        hostname: the name or address to connect to.
        named_key: ``key=`` of the hostfile: it must be usable; None when there is none.
        keys: private keys to try, in order, ``named_key`` first.
        only_keys: of the agent, use only keys that ``keys`` names (IdentitiesOnly).
        agent: socket of the SSH agent; None: use no agent.
        known_as: its name in known_hosts; ``known_plain``: the name that also counts when that is unknown, or empty.
        known_hosts: files to look it up in; new keys go into the first.
        accept_new: take an unknown host key and write it down; a changed one is refused all the same.
        hash_names: write names to known_hosts only as hashes.
        proxy_command: what gives the connection instead of TCP, tokens replaced; None for none.
        jump: the host through which it is reached; None for none.
        family: an address family of ``socket``; ``bind``: own address to come from, or empty.
    """

    name: str
    hostname: str
    port: int
    user: str
    named_key: str | None
    keys: tuple[str, ...]
    only_keys: bool
    agent: str | None
    known_as: str
    known_plain: str
    known_hosts: tuple[str, ...]
    accept_new: bool
    hash_names: bool
    proxy_command: str | None
    jump: SshTarget | None
    family: int
    bind: str

    @property
    def where(self) -> str:
        """The host as the user named it, and what was made of that."""
        via = f" through {self.jump.name}" if self.jump else ""
        return f"{self.name} ({self.user}@{self.hostname}:{self.port}{via})"

    def by_hand(self) -> str:
        """The command that tests the same by hand."""
        words = ["ssh"]
        if self.port != 22:
            words += ["-p", str(self.port)]
        if self.named_key:
            words += ["-i", self.named_key]
        return " ".join([*words, f"{self.user}@{self.name}", "true"])


def make_target(host: Host, config: SshConfig, options: RemoteOptions) -> SshTarget:
    """Decide how a host is reached: its hostfile line wins over ssh_config.

    Raises:
        UnreachableError: ssh_config holds something that cannot be followed.
    """
    return _make(_Hop(host.name, host.user, host.port), host.key, config, options, ())


@dataclass(frozen=True, slots=True)
class _Hop:
    """A host to connect to, as named on a hostfile's line or in ProxyJump."""

    name: str
    user: str | None
    port: int | None


def _make(
    hop: _Hop, key: str | None, config: SshConfig, options: RemoteOptions, route: Sequence[str]
) -> SshTarget:
    found = config.settings(hop.name, hop.user, hop.port)
    user = hop.user or found.get("user") or local_user()
    port = hop.port or _number(found, "port", 22)
    hostname = found.hostname()
    alias = found.get("hostkeyalias")
    named = os.path.expanduser(key) if key else None
    command = found.get("proxycommand")
    if command is None or command.lower() == "none":
        command = None
    return SshTarget(
        name=hop.name,
        hostname=hostname,
        port=port,
        user=user,
        named_key=named,
        keys=tuple(dict.fromkeys([*([named] if named else []), *_keys(found, named is not None)])),
        only_keys=found.is_yes("identitiesonly"),
        agent=_agent(found),
        known_as=alias or lookup_name(hostname, port),
        known_plain="" if alias or port == 22 else hostname.lower(),
        known_hosts=tuple(_known_hosts(found)),
        accept_new=options.accept_new_host_keys,  # not by StrictHostKeyChecking: many clusters switch it off for all
        hash_names=found.is_yes("hashknownhosts"),
        proxy_command=expand(command, found, port) if command else None,
        jump=_jump(found, hop, config, options, route),
        family=_FAMILIES.get((found.get("addressfamily") or "any").lower(), socket.AF_UNSPEC),
        bind=found.get("bindaddress") or "",
    )


def _number(found: Settings, keyword: str, default: int) -> int:
    text = found.get(keyword)
    if text is None:
        return default
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UnreachableError(f"{found.name}: ssh_config says {keyword} {text}, expected a number")
    return int(text)


def _keys(found: Settings, has_named: bool) -> list[str]:
    """IdentityFile lines, else the default ones, as ssh does: a key that is named takes the place of the default ones."""
    named = [expand_path(text, found) for text in found.all("identityfile") if text.lower() != "none"]
    if named or found.all("identityfile") or has_named:
        return named
    folder = os.path.expanduser("~/.ssh")
    return [os.path.join(folder, name) for name in DEFAULT_KEYS]


def _agent(found: Settings) -> str | None:
    value = found.get("identityagent") or "SSH_AUTH_SOCK"
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK" or value.startswith("$"):
        name = value.removeprefix("$").strip("{}")
        return os.environ.get(name) or None
    return expand_path(value, found)


def _known_hosts(found: Settings) -> list[str]:
    files: list[str] = []
    for keyword, default in (
        ("userknownhostsfile", USER_KNOWN_HOSTS),
        ("globalknownhostsfile", SYSTEM_KNOWN_HOSTS),
    ):
        named = found.all(keyword) or list(default)
        files += [expand_path(name, found) for name in named if name.lower() != "none"]
    return files


def _jump(
    found: Settings, hop: _Hop, config: SshConfig, options: RemoteOptions, route: Sequence[str]
) -> SshTarget | None:
    text = found.get("proxyjump")
    if text is None or text.lower() == "none":
        return None
    hops = [_read_hop(expand(part.strip(), found), found.name) for part in text.split(",")]
    if any(part.name in (hop.name, found.hostname()) for part in hops):
        return None  # "Host *" with the jump host itself among them
    if len(route) >= MAX_JUMPS or any(part.name in route for part in hops):
        raise UnreachableError(f"{found.name}: ProxyJump goes in a circle: {' -> '.join([*route, text])}")
    first, *others = hops
    jump = _make(first, None, config, options, [*route, hop.name])
    for part in others:
        # the list says how each is reached: what ssh_config has on ProxyJump for it does not count
        jump = _with_jump(_make(part, None, config, options, [*route, hop.name]), jump)
    return jump


def _with_jump(target: SshTarget, jump: SshTarget) -> SshTarget:
    from dataclasses import replace

    return replace(target, jump=jump, proxy_command=None)


_HOP = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?:\[(?P<six>[^\]]+)\]|(?P<name>[^:/]+))(?::(?P<port>\d+))?/?$"
)


def _read_hop(text: str, name: str) -> _Hop:
    match = _HOP.match(text)
    if match is None:
        raise UnreachableError(f"{name}: ssh_config says ProxyJump {text}, expected [user@]host[:port]")
    return _Hop(match["six"] or match["name"], match["user"], int(match["port"]) if match["port"] else None)
