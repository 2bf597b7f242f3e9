"""The host keys that a user and a system know: lines of known_hosts in, the keys of one host out (sshd(8)).

Reads each file once for all hosts of a run, knows hashed names, patterns, ``[host]:port``, ``@revoked`` and
``@cert-authority``. Runs on the head; needs no SSH library: keys stay base64.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from launcher.remote.ssh_config import pattern_matches

REVOKED = "@revoked"
AUTHORITY = "@cert-authority"


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One key of a known_hosts line.

    Attributes:
        kind: ``ssh-ed25519``, ``ssh-rsa``, ...
        blob: the public key in base64.
        marker: ``REVOKED``, ``AUTHORITY`` or empty.
        where: ``file:line``.
    """

    kind: str
    blob: str
    marker: str
    where: str


def lookup_name(name: str, port: int) -> str:
    """How known_hosts names a host and port."""
    return name.lower() if port == 22 else f"[{name.lower()}]:{port}"


class KnownHosts:
    """All known_hosts files of a run; each is read when a host first needs it, and once."""

    def __init__(self) -> None:
        self._files: dict[str, _KnownHostsFile] = {}
        self._lock = threading.Lock()

    def find(self, files: Iterable[str], name: str) -> list[KnownKey]:
        """The keys of a host, in the order of files and lines.

        Args:
            name: see ``lookup_name``; or the HostKeyAlias as it is.
        """
        found: list[KnownKey] = []
        for path in files:
            with self._lock:
                if path not in self._files:
                    self._files[path] = _KnownHostsFile(path)
                file = self._files[path]
            found += file.find(name)
        return found

    def add(self, path: str, name: str, kind: str, blob: str, hashed: bool) -> None:
        """Append a key to a file, as ``ssh`` does when told to accept new ones.

        Raises:
            OSError: the file cannot be written.
        """
        with self._lock:
            folder = os.path.dirname(path)
            if folder and not os.path.isdir(folder):
                os.makedirs(folder, mode=0o700)
            shown = _hash_name(name) if hashed else name
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                text = f"{shown} {kind} {blob}\n".encode("ascii")
                file.write(text if _ends_whole(file) else b"\n" + text)
            self._files.pop(path, None)


def _ends_whole(file: object) -> bool:
    """Whether the file is empty or ends with a newline; devices such as /dev/null count as whole."""
    with contextlib.suppress(OSError):
        file.seek(-1, os.SEEK_END)  # type: ignore[attr-defined]
        return bool(file.read(1) in (b"\n", b""))  # type: ignore[attr-defined]
    return True


class _KnownHostsFile:
    def __init__(self, path: str) -> None:
        self._plain: dict[str, list[tuple[int, KnownKey]]] = {}
        self._patterns: list[tuple[int, Sequence[str], KnownKey]] = []
        self._hashed: list[tuple[int, str, KnownKey]] = []
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file, 1):
                    self._take(line, path, number)
        except OSError:
            pass

    def _take(self, line: str, path: str, number: int) -> None:
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in ("", REVOKED, AUTHORITY):
            return
        key = KnownKey(words[1], words[2], marker, f"{path}:{number}")
        names = words[0].split(",")
        if names[0].startswith("|1|"):
            self._hashed.append((number, names[0], key))
        elif any(letter in words[0] for letter in "*?!"):
            self._patterns.append((number, [name.lower() for name in names], key))
        else:
            for name in names:
                self._plain.setdefault(name.lower(), []).append((number, key))

    def find(self, name: str) -> list[KnownKey]:
        lowered = name.lower()
        found = list(self._plain.get(lowered, ()))
        for number, patterns, key in self._patterns:
            refused = any(p.startswith("!") and pattern_matches(p[1:], lowered) for p in patterns)
            if not refused and any(pattern_matches(p, lowered) for p in patterns if not p.startswith("!")):
                found.append((number, key))
        found += [(number, key) for number, hashed, key in self._hashed if _is_hash_of(hashed, lowered)]
        return [key for _, key in sorted(found, key=lambda entry: entry[0])]


def _is_hash_of(hashed: str, name: str) -> bool:
    parts = hashed.split("|")
    try:
        salt, digest = base64.b64decode(parts[2]), base64.b64decode(parts[3])
    except (IndexError, binascii.Error, ValueError):
        return False
    return hmac.digest(salt, name.encode(), "sha1") == digest


def _hash_name(name: str) -> str:
    salt = os.urandom(hashlib.sha1(usedforsecurity=False).digest_size)
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|1|" + "|".join(base64.b64encode(part).decode("ascii") for part in (salt, digest))
