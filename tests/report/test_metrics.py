from __future__ import annotations

import math
from pathlib import Path

import pytest

from launcher.report.metrics import read_metrics, take_series


@pytest.mark.parametrize(
    ("data", "steps"),
    [
        (b"", []),
        (b'{"step":1,"loss":2.0}\n{"step":2,"loss":1.0}\n', [1, 2]),
        (b'{"step":1}\n{"step":2,"lo', [1]),
        (b'{"step":1}\n{"step":2,"no\xe5', [1]),
        (b'{"step":1}\n{"step":2,"lo{"step":3}\n{"step":4}\n', [1, 4]),
        (b'{"step":1}\r\n\n[2]\nnull\n{"step":3}', [1, 3]),
        ('{"step":1,"note":"a\u2028b"}\n'.encode(), [1]),
    ],
)
def test_whole_rows_are_read_whatever_stands_between(tmp_path: Path, data: bytes, steps: list[int]) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(data)
    assert [row["step"] for row in read_metrics(path)] == steps


def test_no_file_means_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "metrics.jsonl") == []


def test_a_series_is_in_order_and_the_later_row_of_a_step_counts() -> None:
    rows = [
        {"step": 2, "loss": 5.0}, {"step": 1, "loss": 6}, {"step": 3, "eval_loss": 1.0}, {"loss": 1.0},
        {"step": 2, "loss": 4.0}, {"step": 4, "loss": None}, {"step": 5, "loss": float("inf")},
    ]  # fmt: skip
    series = take_series(rows, "loss")
    assert series[:2] == [(1, 6.0), (2, 4.0)]
    assert [step for step, value in series if math.isnan(value)] == [4, 5]
    assert take_series(rows, "eval_loss") == [(3, 1.0)]
    assert take_series(rows, "lr") == []
