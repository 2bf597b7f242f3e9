"""Host: one machine as the user named it, with everything its hostfile line says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the run; its place in the list is its node rank.

    Attributes:
        name: what SSH connects to and what every message says: host name, alias or address (IPv6 without brackets).
        address: the address by which other nodes reach it (``addr=``); empty: found out on the nodes.
        port: SSH port; None: ssh_config's, else 22.
        user: SSH user; None: ssh_config's, else the local one.
        key: path of a private key (``~`` not yet expanded); None: ssh_config's, agent and default keys.
        slots: ranks to start; None: as many as the node has cards.
        devices: card numbers the ranks may use, in order of local rank; empty: the first ``slots`` ones.
        python: interpreter of the ranks on this host; None: see ``--python``.
        setup: set-up scripts of this host alone, as given to ``--setup``.
        env: variables of this host alone, applied after ``--env``; a key may end in ``+`` (prepend) or ``-`` (unset).
        source: where it was written, ``file:line``.
        is_local: started as a subprocess, without SSH (``localhost``).
        job: number of the Slurm job that gave this node; None: it stands in a hostfile, or is this machine.
    """

    name: str
    address: str = ""
    port: int | None = None
    user: str | None = None
    key: str | None = None
    slots: int | None = None
    devices: tuple[str, ...] = ()
    python: str | None = None
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    source: str = ""
    is_local: bool = False
    job: str | None = None


def label_of(host: Host) -> str:
    """Name a host with its port, ``name:port``, where it has one; IPv6 in brackets."""
    if host.port is None:
        return host.name
    return f"[{host.name}]:{host.port}" if ":" in host.name else f"{host.name}:{host.port}"


def unique_labels(hosts: Sequence[Host]) -> list[str]:
    """One label a host, all different, fit for a folder: its name, and the port where hosts share a name."""
    names = [host.name.lower() for host in hosts]
    return [
        host.name if names.count(name) == 1 else label_of(replace(host, port=host.port or 22))
        for host, name in zip(hosts, names, strict=True)
    ]
