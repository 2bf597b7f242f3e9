"""Authentication as ``ssh`` does it: which keys are tried, in which order, and what is said when none is taken."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.agent import AgentKey, AgentSSH

from launcher.base.errors import UnreachableError
from launcher.remote.ssh_target import DEFAULT_KEYS, SshTarget

MISSING = "does not exist"
ENCRYPTED = "is encrypted and no agent has it"


@dataclass(frozen=True, slots=True)
class FileKey:
    """What a key file holds.

    Attributes:
        key: the private key with its certificate, if there is one beside it; None when it cannot be used from the file.
        plain: the same without the certificate; None when there is none.
        blob: the public key, by which an agent's key is known; empty when unknown.
        problem: why there is no ``key``; empty for a file that does not exist and was only a default.
    """

    key: Any = None
    plain: Any = None
    blob: bytes = b""
    problem: str = ""


class LaunchAgent(AgentSSH):  # type: ignore[misc]  # Paramiko is untyped here
    """An SSH agent that many connections share: one socket, one question at a time."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._turn = threading.Lock()
        conn = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            conn.connect(path)
            self._connect(conn)
        except (OSError, paramiko.SSHException):
            conn.close()
            self._conn = None

    def _send_message(self, msg: Any) -> Any:
        with self._turn:
            return super()._send_message(msg)


class _WillingKey:
    """An agent's key whose refusal to sign (unconfirmed, locked) fails this key alone, not the connection."""

    def __init__(self, key: AgentKey) -> None:
        self._key = key

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)

    def sign_ssh_data(self, data: bytes, algorithm: str | None = None) -> bytes:
        try:
            return bytes(self._key.sign_ssh_data(data, algorithm))
        except (OSError, paramiko.SSHException):
            return b""


class KeyRing:
    """Keys of files and agents, each read once for all hosts."""

    def __init__(self) -> None:
        self._files: dict[str, FileKey] = {}
        self._agents: dict[str, LaunchAgent] = {}
        self._lock = threading.Lock()

    def file(self, path: str) -> FileKey:
        """The key in a file."""
        with self._lock:
            if path not in self._files:
                self._files[path] = load_key(path)
            return self._files[path]

    def agent_keys(self, path: str | None) -> tuple[AgentKey, ...]:
        """The keys of an agent; none when there is no agent."""
        if path is None:
            return ()
        with self._lock:
            if path not in self._agents:
                self._agents[path] = LaunchAgent(path)
            return tuple(self._agents[path].get_keys())


def load_key(path: str) -> FileKey:
    """Read a private key; or a public one, whose private half an agent may have."""
    try:
        with open(path, "rb") as file:
            text = file.read()
    except FileNotFoundError:
        return FileKey(problem=MISSING)
    except OSError as error:
        return FileKey(problem=f"cannot be read: {error.strerror}")
    blob = _public_blob(text) or _public_blob_beside(path)
    try:
        key = paramiko.PKey.from_path(path)
        plain = None
        if key.public_blob is not None:
            plain = paramiko.PKey.from_path(path)
            plain.public_blob = None
        return FileKey(key, plain, key.asbytes())
    except (paramiko.PasswordRequiredException, TypeError):
        return FileKey(blob=blob, problem=ENCRYPTED)
    except (
        Exception
    ) as error:  # whatever two libraries raise for a file that is no key, or of a kind they do not know
        if blob and b"PRIVATE KEY" not in text:
            return FileKey(blob=blob, problem="is a public key and no agent has its private half")
        kind = (
            "of a kind that only ssh knows" if "sk-" in str(error) or "UnknownKeyType" in repr(error) else ""
        )
        return FileKey(blob=blob, problem=f"is {kind or 'not a private key'}")


def _public_blob(text: bytes) -> bytes:
    """The public key in a public key file, or in the part of an OpenSSH private key that is never encrypted."""
    words = text.split(None, 2)
    with contextlib.suppress(ValueError, IndexError, struct.error):
        if words[0] != b"-----BEGIN":
            return base64.b64decode(words[1], validate=True)
        if not text.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----"):
            return b""
        data = base64.b64decode(b"".join(text.split(b"\n")[1:]).partition(b"-----")[0])
        at = len(b"openssh-key-v1\0")
        for _ in range(3):  # cipher, key derivation, its options
            at += 4 + int(struct.unpack_from(">I", data, at)[0])
        size = int(struct.unpack_from(">I", data, at + 4)[0])
        return data[at + 8 : at + 8 + size]
    return b""


def _public_blob_beside(path: str) -> bytes:
    try:
        with open(f"{path}.pub", "rb") as file:
            return _public_blob(file.read())
    except OSError:
        return b""


@dataclass(slots=True)
class _Tried:
    refused: list[str]
    unused: list[str]


class Login:
    """Logs in to one host; Paramiko calls ``authenticate`` when the host's key has been accepted."""

    def __init__(self, target: SshTarget, ring: KeyRing) -> None:
        self._target = target
        self._ring = ring

    def check_named_key(self) -> None:
        """See that the key of the hostfile's line can be used, before anything is connected to.

        Raises:
            UnreachableError: it is missing, broken, or encrypted and in no agent.
        """
        path = self._target.named_key
        if path is None:
            return
        held = self._ring.file(path)
        blobs = {key.blob for key in self._ring.agent_keys(self._target.agent)}
        if held.key is None and held.blob not in blobs:
            hint = f"load it once with: ssh-add {path}" if held.problem == ENCRYPTED else ""
            raise UnreachableError(f"{self._target.where}: key {path} {held.problem}", hint)

    def authenticate(self, transport: Any) -> None:
        """Try keys until one is taken.

        Raises:
            UnreachableError: none was; the message says which were tried, and why others were not.
            paramiko.SSHException: the connection broke.
        """
        tried = _Tried([], [])
        for shown, key in self._candidates(tried):
            if not transport.is_active():
                break
            try:
                more = transport.auth_publickey(self._target.user, key)
            except paramiko.BadAuthenticationType as error:
                raise self._refuse(
                    f"it takes no public keys, only {', '.join(error.allowed_types)}", tried
                ) from None
            except paramiko.AuthenticationException as error:
                if "timeout" in str(error).lower():
                    raise
                tried.refused.append(shown)
                continue
            if more:
                raise self._refuse(f"after {shown} it asks for more: {', '.join(more)}", tried)
            return
        raise self._refuse(transport.farewell, tried)

    def _candidates(self, tried: _Tried) -> Iterator[tuple[str, Any]]:
        """Keys in the order of ssh, but a key named on the hostfile's line first: named files that the agent has, the
        agent's others, then files. Servers count: after some six keys they hang up."""
        target = self._target
        agent = {key.blob: key for key in self._ring.agent_keys(target.agent)}
        files = {path: self._ring.file(path) for path in target.keys}
        if target.named_key is not None:
            yield from self._from_file(target.named_key, files.pop(target.named_key), agent, tried)
        held_by_agent = [path for path, held in files.items() if held.blob in agent]
        for path in held_by_agent:
            yield from self._from_file(path, files.pop(path), agent, tried)
        if not target.only_keys:
            for key in agent.values():
                yield f"the agent's {key.comment or key.get_name()}", _WillingKey(key)
        for path, held in files.items():
            yield from self._from_file(path, held, {}, tried)

    def _from_file(
        self, path: str, held: FileKey, agent: dict[bytes, AgentKey], tried: _Tried
    ) -> Iterator[tuple[str, Any]]:
        if held.blob in agent:
            yield f"{path} (by the agent)", _WillingKey(agent.pop(held.blob))
        elif held.key is None:
            if held.problem != MISSING or os.path.basename(path) not in DEFAULT_KEYS:
                tried.unused.append(f"{path} {held.problem}")
        else:
            yield path + ("-cert.pub" if held.plain is not None else ""), held.key
            if held.plain is not None:
                yield path, held.plain

    def _refuse(self, why: str, tried: _Tried) -> UnreachableError:
        parts = [f"tried {', '.join(tried.refused)}" if tried.refused else "there is no key to try"]
        if self._target.agent is None or not self._ring.agent_keys(self._target.agent):
            parts.append("no SSH agent with keys")
        parts += tried.unused
        text = f"{self._target.where}: authentication failed{f' ({why})' if why else ''}: {'; '.join(parts)}"
        hints = [
            f"load it once with: ssh-add {entry.removesuffix(f' {ENCRYPTED}')}"
            for entry in tried.unused
            if entry.endswith(ENCRYPTED)
        ]
        hints.append(f"test it with: {self._target.by_hand()}; if that works, add --transport openssh")
        return UnreachableError(text, "\n".join(hints))
