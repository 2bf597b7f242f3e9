"""The archive of --sync: what is in it, the same bytes each time, limits, files that cannot be read."""

from __future__ import annotations

import hashlib
import os
import tarfile
from pathlib import Path

import pytest

from launcher.base.errors import UsageError
from launcher.launch import parcel as module
from launcher.launch.parcel import pack_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "my project"
    for name in (
        "train.py",
        "pkg/m.py",
        "pkg/sub/数据.json",
        ".git/HEAD",
        "pkg/__pycache__/m.pyc",
        "runs/x/log",
        "a'b\n",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "empty").mkdir()
    (root / "train.py").chmod(0o755)
    os.utime(root / "train.py", (1000.7, 1000.7))
    (root / "link").symlink_to("/shared/data")
    os.link(root / "train.py", root / "again.py")
    return root


def members(folder: Path, *patterns: str) -> dict[str, tarfile.TarInfo]:
    with pack_folder(folder, patterns) as parcel:
        parcel.file.seek(0)
        with tarfile.open(fileobj=parcel.file, mode="r:gz") as archive:
            return {member.name: member for member in archive}


def sha256(folder: Path) -> str:
    with pack_folder(folder) as parcel:
        return parcel.sha256


def test_holds_the_folder_without_what_nobody_needs(folder: Path):
    found = members(folder)
    assert set(found) == {
        "train.py", "again.py", "pkg", "pkg/m.py", "pkg/sub", "pkg/sub/数据.json", "empty", "link", "a'b\n"
    }  # fmt: skip
    assert (found["train.py"].mode, found["train.py"].mtime, found["train.py"].uid) == (0o755, 1000, 0)
    assert (found["link"].issym(), found["link"].linkname) == (True, "/shared/data")
    assert found["again.py"].isreg()
    assert found["again.py"].size == len("train.py")


def test_pieces_make_the_whole(folder: Path):
    with pack_folder(folder) as parcel:
        data = b"".join(parcel.pieces(7))
        assert data == b"".join(parcel.pieces(1 << 20))
        assert (len(data), hashlib.sha256(data).hexdigest()) == (parcel.size, parcel.sha256)
        assert parcel.num_files == 6


def test_same_files_same_bytes(folder: Path):
    first = sha256(folder)
    (folder / "pkg" / "__pycache__" / "n.pyc").write_text("changes the folder's time")
    assert sha256(folder) == first
    (folder / "pkg" / "m.py").write_text("other")
    assert sha256(folder) != first


def test_patterns_of_the_folder_and_of_the_caller(folder: Path):
    (folder / ".dcuignore").write_text("*.json\n!runs/\n", encoding="utf-8-sig")
    found = set(members(folder, "/empty/"))
    assert "pkg/sub/数据.json" not in found
    assert "empty" not in found
    assert {"runs/x/log", ".dcuignore"} <= found


def test_too_large_a_folder_names_what_makes_it_so(folder: Path, monkeypatch):
    monkeypatch.setattr(module, "LIMIT_BYTES", 5 << 20)
    (folder / "model").mkdir()
    for name, size in (("model/a", 3), ("model/b", 2), ("data.bin", 1)):
        with open(folder / name, "wb") as file:
            file.truncate(size << 20)
    with pytest.raises(UsageError) as caught:
        sha256(folder)
    assert (
        "6 MiB of files, at most 5 MiB are brought; the largest: model 5 MiB, data.bin 1 MiB"
        in caught.value.message
    )
    assert str(folder / ".dcuignore") in caught.value.hint
    (folder / ".dcuignore").write_text("/model/\n")
    assert "model" not in members(folder)


def test_no_such_folder(tmp_path: Path):
    with pytest.raises(UsageError, match="there is no such folder"):
        sha256(tmp_path / "nope")


def test_sockets_and_pipes_stay(folder: Path):
    os.mkfifo(folder / "pipe")
    assert "pipe" not in members(folder)


def test_ignore_file_that_is_no_text(folder: Path):
    (folder / ".dcuignore").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"\.dcuignore: cannot be read"):
        sha256(folder)
