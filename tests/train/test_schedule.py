"""Learning rates of the schedules."""

from __future__ import annotations

import pytest

from launcher.train.schedule import rate_factor


@pytest.mark.parametrize("scheduler", ["cosine", "linear", "constant"])
def test_the_rate_rises_in_the_warm_up(scheduler):
    factors = [rate_factor(step, 100, 0.1, scheduler) for step in range(1, 12)]
    assert factors[:10] == pytest.approx([i / 10 for i in range(1, 11)])
    assert factors[10] == 1.0


def test_then_it_falls_by_its_kind():
    assert rate_factor(56, 100, 0.1, "cosine") == pytest.approx(0.5)
    assert rate_factor(56, 100, 0.1, "linear") == pytest.approx(0.5)
    assert rate_factor(100, 100, 0.1, "constant") == 1.0
    assert 0 < rate_factor(100, 100, 0.1, "cosine") < 0.001
    assert 0 < rate_factor(100, 100, 0.1, "linear") < 0.02


def test_no_warm_up_and_a_single_step():
    assert rate_factor(1, 10, 0.0, "cosine") == 1.0
    assert rate_factor(1, 1, 0.0, "linear") == 1.0
    assert rate_factor(1, 1, 0.5, "cosine") == 1.0
