"""A result on its way out: what is there, every byte with its sha256, never more under way than the window."""

from __future__ import annotations

import hashlib
import os
import queue
from pathlib import Path

import pytest

from launcher.node import wire
from launcher.node.folder_out import FolderSender, is_inside, look, make_run_dir


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for name in (
        "adapter/a.safetensors",
        "adapter/sub/空",
        "checkpoints/step-2/x",
        "checkpoints/step-4/adapter/manifest.json",
        "checkpoints/.step-3.partial/x",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "adapter/empty").touch()
    (tmp_path / "checkpoints/latest").write_text("step-2")
    return tmp_path


def test_what_is_there(run_dir: Path):
    size = len("adapter/a.safetensors") + len("adapter/sub/空".encode())
    assert look({"folder": str(run_dir), "names": ["adapter", "model"]}) == {
        "kind": "fetch_state", "found": {"adapter": size}, "checkpoints": ["step-2"]
    }  # fmt: skip
    assert look({"folder": str(run_dir / "nope"), "names": ["adapter"]}) == {
        "kind": "fetch_state", "found": {}, "checkpoints": []
    }  # fmt: skip


def test_all_files_come_with_what_was_read(run_dir: Path):
    said: queue.Queue = queue.Queue()
    FolderSender(str(run_dir / "adapter"), said.put, said.put)
    received, name = {}, ""
    while True:
        frame = said.get(timeout=20)
        if isinstance(frame, bytes):
            received[name] += frame
        elif frame["kind"] == "file":
            name = frame["name"]
            received[name] = b""
        else:
            break
    assert frame["kind"] == "fetched"
    assert received == {
        "a.safetensors": b"adapter/a.safetensors", "empty": b"", "sub/空": "adapter/sub/空".encode()
    }  # fmt: skip
    assert frame["files"] == {
        name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in received.items()
    }


def test_no_more_is_sent_than_was_taken(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(wire, "PIECE_BYTES", 10)
    monkeypatch.setattr(wire, "WINDOW_BYTES", 30)
    (tmp_path / "big").write_bytes(os.urandom(100))
    said: queue.Queue = queue.Queue()
    pieces: queue.Queue = queue.Queue()
    sender = FolderSender(str(tmp_path), said.put, pieces.put)
    assert said.get(timeout=20)["kind"] == "file"
    for _ in range(3):
        pieces.get(timeout=20)
    with pytest.raises(queue.Empty):
        pieces.get(timeout=0.2)
    sender.taken(100)
    assert said.get(timeout=20)["files"]["big"]["size"] == 100
    assert pieces.qsize() == 7


def test_file_that_cannot_be_read_is_named(tmp_path: Path):
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    said: queue.Queue = queue.Queue()
    FolderSender(str(tmp_path), said.put, said.put)
    assert said.get(timeout=20)["kind"] == "file"
    assert said.get(timeout=20) == {
        "kind": "fault", "about": "fetch", "error": f"{tmp_path}/gone: No such file or directory"
    }  # fmt: skip


def test_run_folder_on_a_node(tmp_path: Path):
    assert make_run_dir(str(tmp_path / "a" / "b")) == ""
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    assert make_run_dir(str(tmp_path / "file")) == f"{tmp_path}/file: File exists"
    assert make_run_dir(str(tmp_path / "file" / "x")) == f"{tmp_path}/file/x: Not a directory"


def test_what_stands_inside_a_folder():
    assert is_inside("/a/b/runs/x", "/a/b/")
    assert is_inside("/a/b", "/a/b")
    assert not is_inside("/a/bc/x", "/a/b")
    assert not is_inside("/a/b/../c", "/a/b")


def test_a_folder_that_goes_is_a_fault_of_the_fetch_and_its_window_is_the_heads(tmp_path: Path):
    said: queue.Queue = queue.Queue()
    FolderSender(str(tmp_path / "gone"), said.put, said.put)
    assert said.get(timeout=20) == {
        "kind": "fault", "about": "fetch", "error": f"{tmp_path}/gone: No such file or directory"
    }  # fmt: skip
    (tmp_path / "adapter").mkdir()
    for name in "ab":
        (tmp_path / "adapter" / name).write_bytes(b"x" * wire.PIECE_BYTES)
    sender = FolderSender(str(tmp_path / "adapter"), said.put, said.put, wire.PIECE_BYTES)
    assert [said.get(timeout=20) for _ in range(3)] == [
        {"kind": "file", "name": "a"}, b"x" * wire.PIECE_BYTES, {"kind": "file", "name": "b"}
    ]  # fmt: skip
    with pytest.raises(queue.Empty):
        said.get(timeout=0.3)
    sender.taken(wire.PIECE_BYTES)
    assert said.get(timeout=20) == b"x" * wire.PIECE_BYTES
    assert said.get(timeout=20)["kind"] == "fetched"
