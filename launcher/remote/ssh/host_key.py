"""Is this the host's own key? Decided by known_hosts alone; an unknown key is refused unless accepting was asked for."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from typing import Any

import paramiko

from launcher.base.errors import UnreachableError
from launcher.remote.failures import UnknownHostKeyError
from launcher.remote.known_hosts import AUTHORITY, REVOKED, KnownHosts, KnownKey, lookup_name
from launcher.remote.ssh_config import pattern_matches
from launcher.remote.ssh_target import SshTarget

CERTIFIED_KINDS = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "rsa-sha2-256")


class HostKeyCheck(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]  # Paramiko is untyped here
    """Judges the key of one host. Paramiko is given no known keys, so that it asks here about every one."""

    def __init__(self, target: SshTarget, known_hosts: KnownHosts) -> None:
        self._target = target
        self._known_hosts = known_hosts
        self._known = known_hosts.find(target.known_hosts, target.known_as)
        self._plain = known_hosts.find(target.known_hosts, target.known_plain) if target.known_plain else []

    def kinds(self) -> list[str]:
        """Key kinds to ask the server for first: those that are known of it."""
        kinds: list[str] = []
        for known in self._known:
            if known.marker == AUTHORITY:
                kinds += [f"{kind}-cert-v01@openssh.com" for kind in CERTIFIED_KINDS]
            elif known.kind == "ssh-rsa":
                kinds += ["rsa-sha2-512", "rsa-sha2-256"]
            else:
                kinds.append(known.kind)
        return list(dict.fromkeys(kinds))

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        """Accept the key by returning.

        Raises:
            UnreachableError: it is unknown, revoked, or not the one that is known.
        """
        blob = key.get_base64()
        shown = f"{key.get_name()} {key.fingerprint}"
        for known in (*self._known, *self._plain):
            if known.marker == REVOKED and known.blob == blob:
                raise UnreachableError(
                    f"{self._target.where}: its host key is revoked ({shown}; {known.where})"
                )
        own = [known for known in self._known if not known.marker]
        if any(known.blob == blob for known in own):
            return
        if own:
            raise UnreachableError(
                f"{self._target.where}: its host key is not the one in known_hosts: it shows {shown}, "
                f"{own[0].where} has another",
                f"if the host was reinstalled: ssh-keygen -R '{self._target.known_as}' "
                f"-f {own[0].where.rpartition(':')[0]}, then accept the new key; if not, somebody may be listening in",
            )
        if self._is_signed(key) or any(known.blob == blob for known in self._plain if not known.marker):
            return
        if not self._target.accept_new:
            target = self._target
            # ssh-keyscan goes by no jump host and writes no HostKeyAlias
            can_scan = (
                target.jump is None
                and target.proxy_command is None
                and target.known_as == lookup_name(target.hostname, target.port)
            )
            scan = (target.hostname, target.port) if can_scan else None
            raise UnknownHostKeyError(target.where, shown, scan, target.by_hand())
        self._write_down(key.get_name(), blob)

    def _is_signed(self, key: Any) -> bool:
        authorities = [known for known in self._known if known.marker == AUTHORITY]
        certificate: Any = getattr(key, "public_blob", None)
        if not authorities or certificate is None:
            return False
        return is_signed_by(certificate.key_type, certificate.key_blob, authorities, self._target.known_as)

    def _write_down(self, kind: str, blob: str) -> None:
        for path in self._target.known_hosts[:1]:
            try:
                self._known_hosts.add(path, self._target.known_as, kind, blob, self._target.hash_names)
            except OSError as error:
                raise UnreachableError(
                    f"{self._target.where}: its host key cannot be added to {path}: {error.strerror}"
                ) from None


def is_signed_by(kind: str, blob: bytes, authorities: Sequence[KnownKey], name: str) -> bool:
    """Whether a host certificate is signed by one of the authorities, for this name and this moment."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        SSHCertificateType,
        load_ssh_public_identity,
    )

    try:
        certificate: Any = load_ssh_public_identity(kind.encode() + b" " + base64.b64encode(blob))
        certificate.verify_cert_signature()
        signer = (
            certificate.signature_key()
            .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
            .split()[1]
            .decode()
        )
    except (ValueError, InvalidSignature):
        return False
    plain = name.removeprefix("[").partition("]")[0]
    principals = [principal.decode("utf-8", "replace").lower() for principal in certificate.valid_principals]
    return (
        certificate.type is SSHCertificateType.HOST
        and any(signer == authority.blob for authority in authorities)
        and certificate.valid_after <= time.time() < certificate.valid_before
        and (not principals or any(pattern_matches(principal, plain) for principal in principals))
    )
