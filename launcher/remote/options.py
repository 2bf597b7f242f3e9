"""How to reach hosts: what the command line says about it."""

from __future__ import annotations

from dataclasses import dataclass

TRANSPORTS = ("auto", "ssh", "openssh", "srun")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """Settings of all connections of a run.

    Attributes:
        transport: ``ssh`` (Fabric), ``openssh`` (the system's ``ssh``), ``srun``, or ``auto``: srun to nodes of a Slurm
            job, ssh to others.
        connect_timeout: seconds for one attempt to connect and authenticate.
        retry_for: seconds over which a server that drops connections is tried again.
        accept_new_host_keys: add unknown host keys to known_hosts instead of refusing them; changed keys are always refused.
        fanout: connections opened at a time.
        jump_fanout: connections opened at a time through one jump host.
    """

    transport: str = "auto"
    connect_timeout: float = 10.0
    retry_for: float = 30.0
    accept_new_host_keys: bool = False
    fanout: int = 64
    jump_fanout: int = 8
