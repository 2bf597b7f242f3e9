"""A head in the lab that tests may furnish: its ~/.ssh as it likes, put back after the test."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]


class Head:
    """Host 1 as the head; ``ssh`` is its ~/.ssh."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.ssh = lab.ssh_folder(1)

    def write(self, name: str, text: str) -> Path:
        """Write a file of ~/.ssh."""
        path = self.ssh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    def make_key(
        self, name: str, locked_by: str = "", kind: str = "ed25519", home: Path | None = None
    ) -> Path:
        """A new key in ~/.ssh; it opens the account whose home is given."""
        path = self.ssh / name
        words = ["ssh-keygen", "-q", "-t", kind, "-N", locked_by, "-C", name, "-f", str(path)]
        subprocess.run(words, check=True)
        if home is not None:
            with open(home / ".ssh" / "authorized_keys", "a") as file:
                file.write(path.with_suffix(".pub").read_text())
        return path

    def known(self, pattern: str) -> list[str]:
        """Lines of known_hosts with this text."""
        return [line for line in (self.ssh / "known_hosts").read_text().splitlines() if pattern in line]

    def forget(self, name: str) -> None:
        """Take a host out of known_hosts."""
        lines = (self.ssh / "known_hosts").read_text().splitlines(keepends=True)
        self.write("known_hosts", "".join(line for line in lines if name not in line.split()[0].split(",")))

    def hostfile(self, *lines: str) -> Path:
        """A hostfile of these lines."""
        path = self.folder / "hosts"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def reach(
        self, *lines: str, options: tuple[str, ...] = (), env: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Reach hosts as a run does; see ``tests.remote.reach``."""
        words = [sys.executable, "-W", "ignore", "-m", "tests.remote.reach", self.hostfile(*lines), *options]
        env = {"PYTHONPATH": str(ROOT), **(env or {})}
        done = self.lab.run(1, words, cwd=self.folder, env=env, timeout=60)
        if not done.stdout.strip():
            raise AssertionError(done.stderr)
        said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        said["stderr"] = done.stderr
        return said


@pytest.fixture
def head(lab: Lab, lab_path: Path, tmp_path: Path) -> Iterator[Head]:
    """The head of four hosts: all that is added to known_hosts with a host is there before it is kept."""
    lab.up(4)
    ssh = lab.ssh_folder(1)
    kept = tmp_path / "ssh"
    shutil.copytree(ssh, kept)
    yield Head(lab, lab_path)
    for path in ssh.iterdir():  # the folder itself is mounted
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(kept, ssh, dirs_exist_ok=True)
