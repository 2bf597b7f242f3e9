"""--smoke: 20 steps, a verdict, and the exit code that it amounts to."""

import json
import shutil
import subprocess
import sys

import pytest

from launcher.commands.smoke import judge_smoke

FALLING = [{"loss": 3 - step / 10, "step_s": 5.0 if step == 0 else 0.1} for step in range(20)]


def oks(rows, read="20"):
    return [check.ok for check in judge_smoke(rows, read).checks]


def test_each_part_of_the_verdict():
    good = judge_smoke(FALLING, "20")
    assert good.error is None
    assert good.checks[0].told.startswith("2.7500 -> 1.3500")
    assert "median 0.100 s, slowest 0.100 s, first step 5.000 s" in good.checks[1].told
    assert oks([{**row, "loss": 2.0} for row in FALLING]) == [False, True, True]
    assert oks([*FALLING[:-1], {**FALLING[-1], "loss": None}]) == [False, True, True]
    slow = [{**row, "step_s": 9.0 if step % 3 == 0 else 0.1} for step, row in enumerate(FALLING)]
    assert oks(slow) == [True, False, True]
    assert oks(FALLING, None) == oks(FALLING, "0") == [True, True, False]
    assert judge_smoke(FALLING, None).error.exit_code == 1
    assert oks([]) == [False, False, True]


@pytest.mark.train
def test_the_demo_passes_and_a_rate_of_nothing_does_not(tmp_path):
    def smoke(name, *words):
        done = subprocess.run(
            [sys.executable, "-m", "launcher.cli", "--nproc", "2", "--smoke", "--run-dir", name, *words],
            cwd=tmp_path, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        return done, json.loads((tmp_path / name / "summary.json").read_text())

    done, summary = smoke("good", "data.eval_fraction=0.1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("smoke: ok ") == 3
    assert "checkpoint loads: step 20 read back" in done.stdout
    assert summary["smoke"]["ok"] is True
    rows = [json.loads(line) for line in (tmp_path / "good" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "eval_loss" in row] == [10, 20]
    assert rows[0]["facts"]["rows"] <= 48
    adapter = (tmp_path / "good" / "adapter" / "adapter_model.safetensors").read_bytes()
    # a whole checkpoint of a later step, from another run: it is neither read back nor in the result
    run = tmp_path / "later" / "checkpoints"
    shutil.copytree(tmp_path / "good" / "checkpoints" / "step-00000010", run / "step-00000400")
    done, summary = smoke("later", "data.eval_fraction=0.1")
    assert (done.returncode, summary["results"]["checkpoint_read"]) == (0, "20"), done.stdout + done.stderr
    assert (tmp_path / "later" / "adapter" / "adapter_model.safetensors").read_bytes() == adapter
    done, summary = smoke("bad", "train.learning_rate=0.5", "train.warmup_ratio=0")
    assert (done.returncode, summary["exit"]) == (1, 1), done.stdout + done.stderr
    assert (summary["kind"], summary["smoke"]["ok"]) == ("smoke_failed", False)
    assert "NOT loss falls" in done.stdout


def test_scripts_are_refused(tmp_path):
    (tmp_path / "a.py").touch()
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "--smoke", "a.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--smoke is for recipes" in done.stderr
