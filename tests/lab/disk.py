"""The files of a lab: names, keys, users and sshd configs of its hosts, and the two small C programs that run them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent

SSHD_CONFIG = """\
HostKey {host}/etc/ssh_host_ed25519_key
PidFile /run/sshd.pid
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
AuthorizedKeysFile .ssh/authorized_keys
StrictModes no
MaxStartups 500
MaxSessions 100
LogLevel VERBOSE
Subsystem sftp internal-sftp
"""


class LabDisk:
    """Everything a lab keeps below one folder.

    Args:
        folder: not under /tmp, /run or /dev/shm, of which each host has its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        if any(self.folder.is_relative_to(own) for own in ("/tmp", "/run", "/dev/shm", "/opt")):
            raise ValueError(f"{self.folder}: hosts have their own of it and would not see the lab's files")
        self.shared = self.folder / "shared"
        self.home = self.folder / "home" / "root"
        self.folder.mkdir(parents=True, exist_ok=True)

    def make(self) -> None:
        """The files that all hosts share."""
        for path in (self.shared, self.home / ".ssh", self.folder / "etc", self.folder / "hosts"):
            path.mkdir(parents=True)
        passwd = Path("/etc/passwd").read_text().splitlines()
        others = [line for line in passwd if not line.startswith("root:")]
        lines = [f"root:x:0:0:root:{self.home}:/bin/bash", *others]
        (self.folder / "etc" / "passwd").write_text("\n".join(lines) + "\n")
        (self.folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        (self.folder / "known_hosts").touch()
        _make_key(self.folder / "id_ed25519", "lab")

    def clear(self) -> None:
        """Remove all but the lock and the compiled programs."""
        for name in ("hosts", "home", "etc", "shared"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("id_ed25519", "id_ed25519.pub", "known_hosts"):
            (self.folder / name).unlink(missing_ok=True)

    def host(self, i: int) -> Path:
        """The folder of one host."""
        return self.folder / "hosts" / str(i)

    def hosts(self) -> list[int]:
        """The hosts that have a folder."""
        return sorted(int(path.name) for path in (self.folder / "hosts").iterdir())

    def add_host(self, i: int, name: str, addresses: Sequence[str]) -> None:
        """Make the host's own files, and tell its name and key to all hosts, those that are up too."""
        host = self.host(i)
        for part in ("etc", "opt.upper", "opt.work", "log", "ssh"):
            (host / part).mkdir(parents=True)
        (host / "etc" / "hostname").write_text(name + "\n")
        (host / "etc" / "resolv.conf").write_text("")
        _make_key(host / "etc" / "ssh_host_ed25519_key", name)
        for file in ("id_ed25519", "known_hosts"):
            shutil.copy(self.folder / file, host / "ssh" / file)
        shutil.copy(self.folder / "id_ed25519.pub", host / "ssh" / "authorized_keys")
        (host / "ssh").chmod(0o700)
        key = " ".join((host / "etc" / "ssh_host_ed25519_key.pub").read_text().split()[:2])
        for j in self.hosts():
            _append(self.host(j) / "ssh" / "known_hosts", f"{name},{','.join(addresses)} {key}\n")
        _append(self.folder / "known_hosts", f"{name},{','.join(addresses)} {key}\n")
        _append(self.folder / "etc" / "hosts", f"{addresses[0]} {name}\n")

    def add_user(self, user: str, shell: str = "/bin/bash") -> Path:
        """Add a user with this login shell whom root's key lets in, on all hosts; returns the home folder."""
        home = self.folder / "home" / user
        if not home.exists():
            uid = 3000 + len(list(home.parent.iterdir()))
            (home / ".ssh").mkdir(parents=True)
            shutil.copy(self.folder / "id_ed25519.pub", home / ".ssh" / "authorized_keys")
            for path in (home, home / ".ssh", home / ".ssh" / "authorized_keys"):
                os.chown(path, uid, uid)
            _append(self.folder / "etc" / "passwd", f"{user}:x:{uid}:{uid}::{home}:{shell}\n")
        return home

    def write_sshd_config(self, i: int, lines: Sequence[str]) -> list[str]:
        """Write it with these lines first, since sshd takes the first of a kind; returns sshd's command line."""
        host = self.host(i)
        ports = [] if any(line.lower().startswith("port ") for line in lines) else ["Port 22"]
        text = "\n".join([*lines, *ports, SSHD_CONFIG.format(host=host)])
        (host / "etc" / "sshd_config").write_text(text)
        return ["/usr/sbin/sshd", "-f", f"{host}/etc/sshd_config", "-E", f"{host}/log/sshd.log"]

    def tool(self, name: str) -> Path:
        """The program compiled from ``name``.c, compiled now if it never was."""
        source = HERE / f"{name}.c"
        digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
        program = self.folder / "bin" / f"{name}-{digest}"
        if not program.exists():
            program.parent.mkdir(exist_ok=True)
            made = program.with_suffix(f".{os.getpid()}")
            subprocess.run(["gcc", "-O2", "-static", "-o", made, source], check=True)
            made.replace(program)
        return program


def _append(path: Path, text: str) -> None:
    # in place, never by rename: hosts that are up have these very files mounted
    with open(path, "a") as file:
        file.write(text)


def _make_key(path: Path, comment: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path], check=True)
