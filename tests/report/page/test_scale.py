from __future__ import annotations

import math

import pytest

from launcher.report.page.scale import Scale, find_range, find_ticks, format_tick, thin_out


@pytest.mark.parametrize(
    ("low", "high", "count", "ticks"),
    [
        (0.93, 2.1, 6, [1.0, 1.2, 1.4, 1.6, 1.8, 2.0]),
        (0, 2e-4, 3, [0, 1e-4, 2e-4]),
        (1.73, 1.76, 4, [1.73, 1.74, 1.75, 1.76]),
        (5, 5, 4, [5]),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, ticks: list[float]) -> None:
    assert find_ticks(low, high, count) == pytest.approx(ticks)


def test_steps_have_whole_ticks() -> None:
    assert find_ticks(1, 4, 8, whole=True) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (1.2, 0.2, "1.2"),
        (0.0, 1e-4, "0"),
        (2e-4, 1e-4, "2e-4"),
        (20000, 10000, "20k"),
        (1.735, 0.005, "1.735"),
    ],
)
def test_ticks_as_texts(value: float, step: float, text: str) -> None:
    assert format_tick(value, step) == text


def test_ranges_have_air_and_never_no_width() -> None:
    assert find_range([1.0, 2.0]) == pytest.approx((0.95, 2.05))
    assert find_range([1.0, 2.0], from_zero=True) == pytest.approx((0.0, 2.1))
    for values in ([3.0], [0.0], [-2.0, -2.0], [1e-12]):
        low, high = find_range(values)
        assert low < values[0] < high


def test_a_scale_maps_its_ends() -> None:
    scale = Scale(1, 11, 100, 0)
    assert (scale(1), scale(6), scale(11)) == (100, 50, 0)


def test_thinning_keeps_spikes_order_and_gaps() -> None:
    points = [(step, 1.0) for step in range(10_000)]
    points[5_555] = (5_555, 99.0)
    points[7_777] = (7_777, math.nan)
    kept = thin_out(points, 700)
    assert len(kept) <= 702
    assert (5_555, 99.0) in kept
    assert kept == sorted(kept)
    assert thin_out(points[:50], 700) == points[:50]
    gap = [(step, math.nan) for step in range(2_000)]
    assert all(math.isnan(value) for _, value in thin_out(gap, 100))
