"""Whole runs by the command line: what a healthy one leaves behind, and one that breaks off with an error of the card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.report.folders import Page
from tests.train.tiny import ROOT

pytestmark = pytest.mark.train

#: found by every Python of the run: the operator fails in the third step as it would on a card
BROKEN_OPERATOR = """
import os
if "RANK" in os.environ:
    import torch
    real, calls = torch.nn.functional.scaled_dot_product_attention, [0]
    def scaled_dot_product_attention(*arguments, **options):
        calls[0] += 1
        if calls[0] > 60:
            raise RuntimeError("HIP error: an illegal memory access was encountered")
        return real(*arguments, **options)
    torch.nn.functional.scaled_dot_product_attention = scaled_dot_product_attention
"""
#: the built-in demo, shortened
DEMO = [
    "--nproc",
    "1",
    "--run-dir",
    "run",
    "train.max_steps=12",
    "data.eval_fraction=0.2",
    "train.eval_every=6",
]


def launch(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "launcher.cli", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=180)


def test_a_run_writes_its_page_and_gets_no_verdict(tmp_path: Path) -> None:
    done = launch(tmp_path, *DEMO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"dcu-launch: report: {tmp_path}/run/report.html" in done.stdout
    assert "warning" not in done.stdout + done.stderr
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert page.problems == []
    assert page.texts["verdicts"].startswith("DiagnosisNothing stands out")
    steps = [point[0] for point in page.islands[0][0]["points"]]
    assert steps == list(range(1, 13))
    assert [point[0] for point in page.islands[0][2]["points"]] == [6, 12]
    assert [row[2] for row in page.cells["timeline"]].count("saved") >= 1
    told = launch(tmp_path, "diagnose", "--json", "run")
    assert json.loads(told.stdout)["verdicts"] == []


def test_a_curve_that_breaks_off_names_operator_and_fallback(tmp_path: Path) -> None:
    rows = [{"instruction": "Say it again", "input": "", "output": "The same answer, each time."}] * 32
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(BROKEN_OPERATOR)
    done = launch(
        tmp_path,
        "--start",
        "spawn",
        "--env",
        f"PYTHONPATH={tmp_path}/site:{ROOT}",
        *DEMO,
        "data.path=rows.json",
    )
    assert done.returncode == 1, done.stdout + done.stderr
    told = json.loads(launch(tmp_path, "diagnose", "--json", "run").stdout)
    assert told["state"] == "failed"
    assert [verdict["code"] for verdict in told["verdicts"]] == ["CARD_ERROR", "ROWS_ALIKE"]
    verdict = told["verdicts"][0]
    assert verdict["step"] == told["steps"] > 0
    assert "HIP error: an illegal memory access was encountered" in verdict["evidence"]
    assert verdict["evidence"].endswith("operator: scaled_dot_product_attention")
    assert verdict["cure"].startswith("model.attention=eager")
    page = Page((tmp_path / "run" / "report.html").read_text(encoding="utf-8"))
    assert "CARD_ERROR" in page.texts["verdicts"]
    assert "rank 0 on localhost failed: RuntimeError: HIP error" in page.texts["overview"]
    # what stands out was said while it went on, once
    assert done.stdout.count("warning: The rows are nearly all the same") == 1
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [event["data"]["verdict"] for event in events if "verdict" in event.get("data", {})] == [
        "ROWS_ALIKE"
    ]
