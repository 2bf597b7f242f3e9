"""The measurement of memory itself, small and on the CPU, where steps run and no peak is counted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.train


def test_each_method_takes_its_steps_beside_its_estimate(tmp_path):
    file = tmp_path / "figures.json"
    words = ["--shapes", "tiny", "--device", "cpu", "--lengths", "64", "--methods", "lora,freeze,full"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.estimate", *words, "--json", str(file)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert [each["method"] for each in found] == ["lora", "freeze", "full"]
    assert all(len(each["losses"]) == 3 and all(map(math.isfinite, each["losses"])) for each in found)
    assert all(each["measured"] is None and each["allocated"] > 0 for each in found)
    assert done.stdout.count("| tiny |") == 3
