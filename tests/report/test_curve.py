from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.curve import draw_curve, draw_metrics


def test_a_falling_loss_goes_from_the_upper_left_to_the_lower_right() -> None:
    chart = draw_curve([4.0, 3.0, 2.0, 1.0], width=20, height=6, encoding="ascii")
    assert chart.split("\n") == [
        "4.00 |***",
        "     |   ****",
        "     |       *****",
        "1.00 |            **",
        "     +--------------",
        "      step 1 loss  4",
    ]


def test_the_axis_bears_the_numbers() -> None:
    chart = draw_curve([3.5, 1.25, 0.5], width=40, height=12, first_step=101)
    lines = chart.split("\n")
    assert lines[0].startswith("3.50 \u2524")
    assert lines[9].startswith("0.50 \u2524")
    assert lines[-1].split() == ["step", "101", "loss", "103"]
    assert max(map(len, lines)) == 40


def test_evaluations_are_points_of_their_own() -> None:
    chart = draw_curve([2.0, 1.0], 40, 8, [(1, 2.0), (4, 1.5), (3, math.nan)])
    assert chart.count("\u25cf") == 2 + 1  # two points and the key
    assert chart.split("\n")[-1].split() == ["step", "1", "loss,", "\u25cf", "eval_loss", "4"]


def test_a_loss_that_is_not_finite_leaves_a_gap() -> None:
    whole = draw_curve([1.0] * 9, 30, 5, encoding="ascii")
    torn = draw_curve([1.0] * 4 + [math.nan, math.inf] + [1.0] * 3, 30, 5, encoding="ascii")
    assert "|************************\n" in whole
    assert "|**********       *******\n" in torn


@pytest.mark.parametrize("losses", [[], [math.nan], [math.inf, math.nan]])
def test_without_a_finite_loss_there_is_no_chart(losses: list[float]) -> None:
    assert draw_curve(losses) == ""


@pytest.mark.parametrize(
    ("encoding", "is_ascii"), [("ascii", True), ("latin-1", True), ("gb18030", False), ("x", True)]
)
def test_what_a_terminal_cannot_say_is_drawn_in_ascii(encoding: str, is_ascii: bool) -> None:
    assert draw_curve([2.0, 1.0], encoding=encoding).isascii() == is_ascii


@given(
    st.lists(st.floats(width=32), max_size=300),
    st.integers(10, 120),
    st.integers(4, 30),
    st.sampled_from(["utf-8", "ascii"]),
)
def test_any_losses_fit_into_the_frame(losses: list[float], width: int, height: int, encoding: str) -> None:
    chart = draw_curve(losses, width, height, encoding=encoding)
    if any(map(math.isfinite, losses)):
        assert len(chart.split("\n")) == height


def test_rows_of_metrics_become_a_chart() -> None:
    rows = [{"step": step, "loss": 4.0 - step / 10} for step in range(10, 31, 10)] + [
        {"step": 20, "eval_loss": 2.0}
    ]
    chart = draw_metrics(rows, width=50, height=8)
    assert chart.split("\n")[-1].split() == ["step", "10", "loss,", "\u25cf", "eval_loss", "30"]
    # steps between are drawn through, as with a loss of each step
    assert chart.split("\n")[:-1] == draw_curve([3.0, 2.0, 1.0], 50, 8, [(2, 2.0)]).split("\n")[:-1]
    assert draw_metrics(rows[:1]) == ""
