"""An Accelerate script sees the same state under dcu-launch as under accelerate launch with the same file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.whole_path.conftest import rank_logs
from tests.whole_path.facts import launch_here

pytestmark = pytest.mark.train

STATE = """\
import json, sys
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin
accelerator = Accelerator()
state = accelerator.state
facts = {
    "rank": accelerator.process_index, "world": accelerator.num_processes, "device": accelerator.device.type,
    "main": accelerator.is_main_process, "mixed_precision": accelerator.mixed_precision,
    "type": state.distributed_type.value, "debug": state.debug, "backend": state.backend,
    "accumulation": accelerator.gradient_accumulation_steps, "dynamo": TorchDynamoPlugin().to_dict(),
}
sys.stdout.write(json.dumps(facts) + "\\n")  # in one piece: both ranks have one pipe
sys.stdout.flush()
accelerator.wait_for_everyone()  # who leaves first breaks what the other still sets up
accelerator.end_training()
"""
CONFIG = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
use_cpu: false
debug: true
num_machines: 1
num_processes: 2
dynamo_config:
  dynamo_backend: INDUCTOR
  dynamo_mode: reduce-overhead
  dynamo_use_dynamic: false
  dynamo_use_fullgraph: true
"""


def states(text: str) -> list[dict]:
    found = [json.loads(line) for line in text.split("\n") if line.startswith('{"rank"')]
    return sorted(found, key=lambda state: state["rank"])


def test_same_state_under_both_launchers(tmp_path: Path):
    (tmp_path / "state.py").write_text(STATE)
    (tmp_path / "a.yaml").write_text(CONFIG)
    program = Path(sys.executable).with_name("accelerate")
    # without a card accelerate launch starts processes that do not know of each other, unless it is told so
    theirs = subprocess.run(
        [program, "launch", "--config_file", "a.yaml", "--main_process_port", "0", "state.py"],
        cwd=tmp_path, env={**os.environ, "ACCELERATE_USE_CPU": "true"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert theirs.returncode == 0, theirs.stderr
    words = ["--nproc", "2", "--run-dir", "run", "--accelerate-config", "a.yaml", "state.py"]
    ours = launch_here(tmp_path, *words)
    assert ours.returncode == 0, ours.stdout + ours.stderr
    expected = states(theirs.stdout)
    assert [state["world"] for state in expected] == [2, 2]
    assert states("\n".join(rank_logs(tmp_path / "run"))) == expected
    assert expected[0]["mixed_precision"] == "bf16"
    assert (expected[0]["debug"], expected[0]["dynamo"]["backend"]) == (True, "inductor")
