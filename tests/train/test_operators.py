"""Operators against float64: right ones work; one that is wrong, missing, raises, crashes or hangs is told as that."""

import json
import os
import subprocess
import sys

import pytest

from launcher.train import operators

pytestmark = pytest.mark.train


#: name -> what a made-up operator does in bf16 alone, its state, a piece of what is said
MADE_UP = {
    "right": ("pass", "works", ""),
    "wrong": ("x = x + 1", "wrong", "off by"),
    "nan": ("x = x * float('nan')", "wrong", "off by nan"),
    "missing": ("raise NotImplementedError('no kernel')", "missing", "no kernel"),
    "failing": ("raise RuntimeError('HIP error: invalid argument')", "failed", "HIP error"),
    "crashing": ("os.abort()", "crashed", "SIGABRT"),
    "hanging": ("time.sleep(60)", "crashed", "no answer within 4 s"),
}


@pytest.fixture(scope="module")
def facts():
    """All facts of the made-up operators and of the real ones but for the compiler, of one process as on a node."""
    lines = ["import json, os, sys, time, torch", "from launcher.train import operators"]
    for name, (body, _, _) in MADE_UP.items():
        lines += [
            f"def {name}(device, dtype):",
            "    x = torch.ones(4, dtype=dtype)",
            f"    if dtype == torch.bfloat16:\n        {body}",
            "    return [x]",
            f"operators.OPERATORS[{name!r}] = {name}",
        ]
    lines += [
        "del operators.OPERATORS['compile']",
        "operators.LIMITS_S['hanging'] = 4",
        "sys.exit(operators.main())",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True, text=True, timeout=150, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line.removeprefix("DCU-FACT ")) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", MADE_UP)
def test_an_operator_that_does_not_work_is_told(facts, name):
    _, state, piece = MADE_UP[name]
    rows = {
        fact["operator"]["dtype"]: fact["operator"]
        for fact in facts
        if fact.get("operator", {}).get("name") == name
    }
    assert [rows[dtype]["state"] for dtype in ("fp32", "fp16", "bf16")] == ["works", "works", state]
    assert piece in rows["bf16"]["detail"]


def test_the_operators_of_training_work_on_the_cpu(facts):
    names = [name for name in operators.OPERATORS if name != "compile"]
    rows = [fact["operator"] for fact in facts if fact.get("operator", {}).get("name") in names]
    assert len(rows) == len(names) * 3
    for row in rows:
        assert row["state"] == ("missing" if row["name"] == "flash_attention" else "works"), row
    assert [fact["choice"]["precision"] for fact in facts if "choice" in fact] == ["fp32"]
