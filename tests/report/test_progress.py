from __future__ import annotations

from typing import Any

import pytest

from launcher.report.progress import Progress, format_row

ROW: dict[str, Any] = {"loss": 1.2344, "lr": 2e-4, "tokens_per_s": 1234.4, "step_s": 0.42, "epoch": 1.0}


@pytest.mark.parametrize(
    ("step", "total", "data", "remaining_s", "line"),
    [
        (10, 200, ROW, 80.0, "step  10/200  loss 1.2344  lr 2.0e-04  tokens/s 1,234  eta 0:01:20"),
        (200, 200, ROW, 0.0, "step 200/200  loss 1.2344  lr 2.0e-04  tokens/s 1,234"),
        (7, None, {"loss": 2}, None, "step 7  loss 2.0000"),
        (10, 20, {"eval_loss": 1.5}, None, "step 10/20  eval_loss 1.5000"),
        (10, 20, {"loss": None, "lr": 1e-5}, None, "step 10/20  loss nan  lr 1.0e-05"),
        (10, 20, {"loss": float("nan")}, None, "step 10/20  loss nan"),
        (10, 20, {"grad_norm": 1.0}, None, ""),
    ],
)
def test_a_row_is_written_as_one_line(
    step: int, total: int | None, data: dict[str, Any], remaining_s: float | None, line: str
) -> None:
    assert format_row(step, total, data, remaining_s) == line


def test_a_short_run_shows_every_step_with_the_time_that_remains() -> None:
    progress = Progress(20)
    lines = [progress.add(step, {"loss": 1.0, "step_s": 2.0}) for step in range(1, 21)]
    assert lines[9] == "step 10/20  loss 1.0000  eta 0:00:20"
    assert lines[-1] == "step 20/20  loss 1.0000"
    assert progress.take_line(100.0) == ""
    assert progress.line == ""
    assert progress.close() == ""


def test_a_long_run_shows_a_step_now_and_then_and_the_last() -> None:
    progress = Progress(1000)
    shown = []
    for step in range(1, 1001):
        assert progress.add(step, {"loss": 1.0}) == ""
        assert progress.line == f"step {step:>4}/1000  loss 1.0000"
        shown.append(progress.take_line(step / 100))
    shown.append(progress.close())
    assert [line for line in shown if line] == [
        f"step {step:>4}/1000  loss 1.0000" for step in (1, 501, 1000)
    ]


def test_an_evaluation_is_always_shown() -> None:
    assert Progress(None).add(500, {"eval_loss": 1.5}) == "step 500  eval_loss 1.5000"


def test_a_held_row_does_not_come_after_a_later_evaluation() -> None:
    progress = Progress(None)
    assert progress.add(2, {"loss": 2.0}) == ""
    assert progress.add(3, {"loss": 1.0, "eval_loss": 1.5}).startswith("step 3")
    assert progress.close() == ""


def test_a_recipe_of_epochs_shows_the_total_that_its_ranks_know() -> None:
    line = Progress(0).add(3, {"loss": 2.0, "step_s": 2.0, "num_steps": 63})
    assert line == "step  3/63  loss 2.0000  eta 0:02:00"
