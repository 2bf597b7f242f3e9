"""ssh_config and known_hosts as OpenSSH reads them, where Paramiko alone does not: Include, HostKeyAlias, several files.

Paramiko is handed in by ``ssh``; nothing here imports it.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path

USER_CONFIG = "~/.ssh/config"
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
MAX_INCLUDE_DEPTH = 16

_INCLUDE = re.compile(r"^\s*include(?:\s+|\s*=\s*)(.+?)\s*$", re.IGNORECASE)


def read_ssh_config() -> str:
    """The user's and the system's ssh_config as one text, Include lines replaced by what they name (ssh_config(5))."""
    parts = []
    for path, base in ((USER_CONFIG, "~/.ssh"), (SYSTEM_CONFIG, "/etc/ssh")):
        expanded = Path(path).expanduser()
        # "Host *" ends whatever block the file before left open
        parts.append("Host *\n" + _expand(expanded, os.path.expanduser(base), 0))
    return "\n".join(parts) + "\n"


def _expand(path: Path, base: str, depth: int) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    lines: list[str] = []
    block = "Host *"
    for line in text.split("\n"):
        if re.match(r"^\s*(host|match)\b", line, re.IGNORECASE):
            block = line.strip()
        match = _INCLUDE.match(line)
        if match is None:
            lines.append(line)
        elif depth < MAX_INCLUDE_DEPTH:
            lines += [_expand(Path(name), base, depth + 1) for name in _named(match.group(1), base)]
            lines.append(block)
    return "\n".join(lines)


def _named(words: str, base: str) -> list[str]:
    names: list[str] = []
    for word in re.findall(r'"[^"]*"|\S+', words):
        pattern = os.path.join(base, os.path.expanduser(word.strip('"')))
        names += sorted(glob.glob(pattern))
    return names


def known_hosts_files(settings: dict[str, str | list[str]]) -> list[str]:
    """The known_hosts files for one host: UserKnownHostsFile and GlobalKnownHostsFile, or OpenSSH's defaults."""
    files: list[str] = []
    for option, default in (
        ("userknownhostsfile", USER_KNOWN_HOSTS),
        ("globalknownhostsfile", SYSTEM_KNOWN_HOSTS),
    ):
        value = settings.get(option)
        named: Iterable[str] = default if value is None else str(value).split()
        files += [os.path.expanduser(name.strip('"')) for name in named if name.lower() != "none"]
    return files


def lookup_name(name: str, port: int) -> str:
    """How known_hosts names a host and port (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    return name if port == 22 else f"[{name}]:{port}"
