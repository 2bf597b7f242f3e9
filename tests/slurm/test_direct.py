"""The whole path of a time limit without waiting for Slurm: the batch script, real ranks, a signal, the next start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.slurm.script import Job
from launcher.train.checkpoint import list_checkpoints, read_manifest
from tests.lab.lab import BIN
from tests.slurm.batch import Batch
from tests.slurm.slurm_lab import wait_for

pytestmark = pytest.mark.train
NUM_RANKS = 2


def make_batch(folder: Path, steps: int) -> Batch:
    words = ("--nproc", str(NUM_RANKS), f"train.max_steps={steps}", "checkpoint.keep=100")
    job = Job(
        "demo", 1, f"{BIN}/dcu-launch", words, str(folder), str(folder / "run"), str(folder / "run.slurm")
    )
    return Batch(folder, job)


def rows(folder: Path) -> list[dict[str, Any]]:
    path = folder / "run" / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().split("\n") if line] if path.exists() else []


def losses(folder: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in rows(folder)}


def interrupt(batch: Batch, steps: int, delay_s: float) -> tuple[int, str]:
    """One start that gets USR1 ``delay_s`` after it did so many steps."""
    before = len(losses(batch.folder))
    script = batch.start()
    wait_for(
        lambda: len(losses(batch.folder)) >= before + steps, 120, lambda: f"{len(losses(batch.folder))} steps"
    )
    time.sleep(delay_s)
    os.kill(script.pid, signal.SIGUSR1)
    return batch.end(script)


def unbroken_losses(folder: Path, steps: int) -> dict[int, float]:
    """Those of a run of the same settings that nobody stopped."""
    folder.mkdir()
    subprocess.run(
        [f"{BIN}/dcu-launch", "--nproc", str(NUM_RANKS), "--run-dir", "run", f"train.max_steps={steps}"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    return losses(folder)


def check_saved(batch: Batch, code: int, said: str) -> int:
    """A whole checkpoint of the last step done, told in summary.json; its step."""
    run = batch.folder / "run"
    assert code == 138, said
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["kind"], summary["exit"]) == ("interrupted", 138)
    newest = list_checkpoints(run)[0]
    assert read_manifest(newest)["step"] == summary["saved_step"] == max(losses(batch.folder))
    return int(summary["saved_step"])


def test_a_run_that_the_limit_cut_in_two_has_the_losses_of_an_unbroken_one(tmp_path: Path) -> None:
    batch = make_batch(tmp_path, 14)
    code, said = interrupt(batch, 3, 0.1)
    step = check_saved(batch, code, said)
    assert 3 <= step < 14
    assert batch.asked() == ["requeue 7"]
    code, said = batch.run()
    assert code == 0, said
    assert f"goes on after step {step}" in said
    assert batch.asked() == ["requeue 7"]
    assert losses(tmp_path) == unbroken_losses(tmp_path / "unbroken", 14)
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists()


@pytest.mark.soak
def test_20_signals_at_random_moments_leave_20_whole_checkpoints(tmp_path: Path) -> None:
    batch, chance, steps = make_batch(tmp_path, 400), random.Random(11), []
    for number in range(1, 21):
        code, said = interrupt(batch, chance.randint(1, 8), chance.uniform(0, 0.6))
        steps.append(check_saved(batch, code, said))
        assert batch.asked() == ["requeue 7"] * number
    assert steps == sorted(set(steps))
    whole = [read_manifest(folder)["step"] for folder in list_checkpoints(tmp_path / "run")]
    assert sorted(whole) == steps
    assert len(whole) == 20
    unbroken = unbroken_losses(tmp_path / "unbroken", 400)
    assert {step: unbroken[step] for step in losses(tmp_path)} == losses(tmp_path)
