"""Lab hosts that look like DCU nodes: each with a DTK, hyhal, kernel files and Python tree of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.fakedtk import FakeNode
from tests.lab.lab import Lab

HEALTHY = FakeNode()
PACKAGES = {
    "torch": "2.5.1+das.opt1.dtk25042", "torchvision": "0.20.1+das.opt1.dtk25042", "transformers": "4.51.3",
    "peft": "0.15.2", "accelerate": "1.6.0", "datasets": "3.5.0", "safetensors": "0.5.3", "numpy": "1.26.4",
}  # fmt: skip
_OURS = ("dtk", "hyhal", "py", "stray", "software", "conf")
#: replaces /sys and /dev by the node's own; what every program needs of /dev is taken along
_MOUNT = """
set -e
cp -a {files}/opt/. /opt/
for name in null zero full random urandom tty ptmx; do touch {files}/dev/$name; mount --bind /dev/$name {files}/dev/$name; done
mkdir -p {files}/dev/pts {files}/dev/shm
mount --rbind /dev/pts {files}/dev/pts
mount --rbind /dev/shm {files}/dev/shm
ln -sfn /proc/self/fd {files}/dev/fd
mount --rbind {files}/dev /dev
mount --rbind {files}/sys /sys
"""


class DcuHosts:
    """The first hosts of a lab as DCU nodes.

    Args:
        count: how many.
    """

    def __init__(self, lab: Lab, count: int) -> None:
        self.lab = lab
        self.names = lab.up(count)
        self.folder = lab.shared / "dcu"
        self.folder.mkdir()
        self._planted: set[int] = set()
        for i in range(1, count + 1):
            self.plant(i)
            self._planted.clear()

    def heal(self) -> None:
        """Make every host healthy again in which something was planted."""
        for i in sorted(self._planted):
            self.plant(i)
        self._planted.clear()

    def plant(self, i: int, packages: Mapping[str, str | None] | None = None, **facts: Any) -> None:
        """Make host i a node with these facts, healthy where none are given; ``packages``: versions, None for none.

        With ``no Python`` among the packages there is no interpreter either.
        """
        self.clear(i)
        self._planted.add(i)
        files = self.folder / str(i)
        dataclasses.replace(HEALTHY, **facts).write(files)
        (files / "dev").mkdir(exist_ok=True)
        if "no Python" not in (packages or {}):
            write_python(files / "opt" / "py", {**PACKAGES, **(packages or {})})
        self.lab.run(i, ["bash", "-c", _MOUNT.format(files=files)], check=True)

    def clear(self, i: int) -> None:
        """Take it all away again: its files in /opt by hand, its mounts by a power loss."""
        files = self.folder / str(i)
        if files.exists():
            gone = " ".join(f"/opt/{name}" for name in _OURS)
            self.lab.run(i, ["bash", "-c", f"rm -rf {gone}"], check=True)
            self.lab.kill(i)
            self.lab.boot(i)
            shutil.rmtree(files)

    def write(self, i: int, path: str, text: str | bytes, *, append: bool = False) -> None:
        """Write a file on host i."""
        self._planted.add(i)
        data = text if isinstance(text, bytes) else text.encode()
        source = self.folder / "written"
        source.write_bytes(data)
        word = ">>" if append else ">"
        command = f"mkdir -p $(dirname {path}); cat {source} {word} {path}"
        self.lab.run(i, ["bash", "-c", command], check=True)

    def hostfile(self, settings: Mapping[int, str] | None = None, slots: int = 8) -> Path:
        """A hostfile of all, with more words on the lines of some."""
        lines = [
            f"{name} slots={slots} python=/opt/py/bin/python {(settings or {}).get(i, '')}".rstrip()
            for i, name in enumerate(self.names, 1)
        ]
        path = self.folder / "hosts"
        path.write_text("\n".join(lines) + "\n")
        return path

    def down(self) -> None:
        """All hosts bare again."""
        for i in range(1, len(self.names) + 1):
            self.clear(i)
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)


def write_python(place: Path, packages: Mapping[str, str | None]) -> None:
    """A virtual environment whose packages are names and versions alone."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = place / "lib" / version / "site-packages"
    site.mkdir(parents=True)
    (place / "bin").mkdir()
    base = Path(sys.base_prefix) / "bin" / version
    (place / "bin" / "python").symlink_to(base)
    (place / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name, told in packages.items():
        if told is not None:
            folder = site / f"{name}-{told}.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Name: {name}\nVersion: {told}\n")
    torch = packages.get("torch")
    if torch:
        (site / "torch").mkdir()
        text = f"__version__ = {torch.split('+')[0]!r}\nhip = '6.3.25422'\ncuda = None\n"
        (site / "torch" / "version.py").write_text(text)


def findings_of(output: str) -> list[tuple[str, str, list[str]]]:
    """Level, code and hosts of each finding that ``check --json`` printed."""
    return [(row["level"], row["code"], row["hosts"]) for row in json.loads(output)["findings"]]
