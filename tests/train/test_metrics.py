"""metrics.jsonl: one row a step, also after a run that was broken off."""

from __future__ import annotations

import json

import pytest

from launcher.train.channel import Channel
from launcher.train.metrics import MetricsFile

pytestmark = pytest.mark.filterwarnings("error")


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rows_are_appended_and_numbers_that_json_lacks_are_null(tmp_path):
    metrics = MetricsFile(tmp_path / "run" / "metrics.jsonl", Channel(), 0)
    metrics.write(1, {"loss": float("nan"), "lr": 0.1})
    metrics.write(2, {"loss": 1.0, "grad_norm": float("inf")})
    assert rows(tmp_path / "run" / "metrics.jsonl") == [
        {"step": 1, "loss": None, "lr": 0.1}, {"step": 2, "loss": 1.0, "grad_norm": None},
    ]  # fmt: skip


def test_rows_after_the_checkpoint_and_half_lines_are_dropped(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 2, "lo')
    MetricsFile(path, Channel(), 2).write(3, {"loss": 1.0})
    assert rows(path) == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1.0}]


def test_other_ranks_write_nothing(tmp_path):
    MetricsFile(None, Channel(), 0).write(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []
