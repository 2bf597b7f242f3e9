"""The speed measurement itself, small and on the CPU: all arms do the same work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.train


def test_arms_train_the_same_rows_and_are_compared(tmp_path):
    file = tmp_path / "figures.json"
    words = ["--shape", "tiny", "--device", "cpu", "--rows", "8", "--steps", "1", "--warmup", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.train", *words, "--arms", "r0,plain,freeze", "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    arms = json.loads(file.read_text())["arms"]
    assert arms["matmul"]["tflops"] > 0
    assert arms["plain"]["loss"] == pytest.approx(arms["r0"]["loss"], rel=1e-3)
    assert arms["plain"]["grad_norm"] == pytest.approx(arms["r0"]["grad_norm"], rel=1e-3)
    assert arms["freeze"]["loss"] == pytest.approx(arms["r0"]["loss"], rel=1e-3)
    assert len({arm["tokens"] for name, arm in arms.items() if "matmul" not in name}) == 1
    assert all(len(arm["seconds"]) == 2 for name, arm in arms.items() if "matmul" not in name)
    ratio = arms["plain"]["tokens_per_s"] / arms["r0"]["tokens_per_s"]
    assert f"| {ratio:.2f} |" in done.stdout


def test_an_arm_that_fails_is_told_and_the_others_go_on():
    words = ["--shape", "tiny", "--device", "cpu", "--rows", "4", "--steps", "1", "--warmup", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.train", *words, "--arms", "liger,plain"],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert "liger: ConfigError: train.kernels: liger: no card" in done.stderr
    assert "| plain |" in done.stdout
