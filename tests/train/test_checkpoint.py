"""Checkpoints are whole or not there, whatever ends the writer and whenever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.train import checkpoint
from tests.train.tiny import ROOT

pytestmark = pytest.mark.train


def write(run_dir: Path, step: int, value: float = 1.0) -> Path:
    import torch

    tensors = {"trainable": {"a": torch.full((4, 4), value)}, "optimizer": {"a|exp_avg": torch.zeros(4, 4)}}
    return checkpoint.write_checkpoint(run_dir, step, tensors, {"step": step, "value": value}, {"tokens": 7})


def test_what_is_written_comes_back(tmp_path):
    folder = write(tmp_path, 3, 2.5)
    assert folder == tmp_path / "checkpoints" / "step-00000003"
    assert checkpoint.read_state(folder) == {"step": 3, "value": 2.5}
    assert checkpoint.read_tensors(folder, "trainable")["a"].tolist() == [[2.5] * 4] * 4
    assert checkpoint.read_pointer(tmp_path, "latest") == folder.name
    manifest = checkpoint.read_manifest(folder)
    assert (manifest["step"], manifest["tokens"]) == (3, 7)
    assert sorted(manifest["files"]) == ["optimizer.safetensors", "state.json", "trainable.safetensors"]
    assert manifest["files"]["state.json"]["size"] == (folder / "state.json").stat().st_size


def cut(folder: Path) -> None:
    os.truncate(folder / "trainable.safetensors", 20)


def change(folder: Path) -> None:
    data = bytearray((folder / "trainable.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "trainable.safetensors").write_bytes(data)


def remove(folder: Path) -> None:
    (folder / "optimizer.safetensors").unlink()


def remove_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def halve_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 30)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut, "trainable.safetensors has 20 bytes, expected"),
        (change, "trainable.safetensors is not what was written"),
        (remove, "optimizer.safetensors is missing"),
        (remove_manifest, "no manifest.json"),
        (halve_manifest, "manifest.json cannot be read"),
    ],
)
def test_the_newest_whole_one_is_found_and_the_reason_told(tmp_path, damage, why):
    older, newer = write(tmp_path, 1), write(tmp_path, 2)
    damage(newer)
    folder, skipped = checkpoint.find_newest(tmp_path)
    assert folder == older
    assert len(skipped) == 1
    assert why in skipped[0]
    assert skipped[0].startswith("step-00000002: ")


def test_no_checkpoint_at_all(tmp_path):
    assert checkpoint.find_newest(tmp_path) == (None, [])
    assert checkpoint.read_pointer(tmp_path, "latest") == ""


def test_steps_are_ordered_as_numbers(tmp_path):
    for step in (9, 100_000_000, 10):
        write(tmp_path, step)
    assert [p.name for p in checkpoint.list_checkpoints(tmp_path)] == [
        "step-100000000",
        "step-00000010",
        "step-00000009",
    ]


def test_old_ones_go_the_best_stays(tmp_path):
    for step in range(1, 6):
        folder = write(tmp_path, step)
        if step == 2:
            checkpoint.point(tmp_path, "best", folder)
    assert checkpoint.prune(tmp_path, 2) == []
    assert [p.name[-1] for p in checkpoint.list_checkpoints(tmp_path)] == ["5", "4", "2"]
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {
        "latest", "best", "step-00000002", "step-00000004", "step-00000005",
    }  # fmt: skip


def test_what_cannot_be_deleted_is_told_and_nothing_stops(tmp_path, monkeypatch):
    for step in (1, 2):
        write(tmp_path, step)

    def refuse(*args: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("launcher.train.checkpoint.shutil.rmtree", refuse)
    assert checkpoint.prune(tmp_path, 1) == ["step-00000001 could not be deleted: Permission denied"]


def test_a_step_that_is_written_again_replaces_the_old_one(tmp_path):
    write(tmp_path, 1, 1.0)
    folder = write(tmp_path, 1, 2.0)
    assert checkpoint.read_state(folder)["value"] == 2.0
    assert sorted(p.name for p in folder.parent.iterdir()) == ["latest", "step-00000001"]


def test_half_written_folders_are_swept(tmp_path):
    folder = write(tmp_path, 1)
    (folder.parent / ".step-00000002.partial").mkdir()
    (folder.parent / ".latest.partial").write_text("x")
    (tmp_path / ".adapter.old").mkdir()
    checkpoint.sweep(tmp_path)
    assert sorted(p.name for p in folder.parent.iterdir()) == ["latest", "step-00000001"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints"]


WRITER = """
import itertools, sys, torch
from pathlib import Path
from launcher.train import checkpoint
run_dir, content = Path(sys.argv[1]), {"trainable": {"a": torch.ones(1 << 20)}}
for step in itertools.count(1):
    checkpoint.write_checkpoint(run_dir, step, content, {"step": step}, {})
    checkpoint.prune(run_dir, 2)
    print(step, flush=True)
"""


@pytest.mark.parametrize("delay_s", [0.01, 0.03, 0.07, 0.11])
def test_a_writer_killed_in_the_middle_leaves_a_whole_one(tmp_path, delay_s):
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    for _ in range(3):
        done = int(writer.stdout.readline())
    time.sleep(delay_s)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    folder, skipped = checkpoint.find_newest(tmp_path)
    assert skipped == []
    assert folder is not None
    assert int(folder.name[5:]) >= done
    assert checkpoint.read_tensors(folder, "trainable")["a"].shape == (1 << 20,)
    assert json.loads((folder / "manifest.json").read_text())["step"] == checkpoint.read_state(folder)["step"]


def test_a_copy_of_an_adapter_alone_is_no_checkpoint_and_goes_with_old_ones(tmp_path):
    """What a head that does not see a node's run folder brings there, see ``launcher/launch/fetch_best.py``."""
    write(tmp_path, 1)
    for step in (5, 7):
        copy = checkpoint.checkpoint_folder(tmp_path, step)
        (copy / "adapter").mkdir(parents=True)
        (copy / "adapter" / "manifest.json").write_text("{}")
    checkpoint.point(tmp_path, "best", copy)
    newest, skipped = checkpoint.find_newest(tmp_path)
    assert (newest and newest.name, skipped) == ("step-00000001", [])
    assert checkpoint.prune(tmp_path, 1) == []
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == [
        "step-00000001",
        "step-00000007",
    ]
