from __future__ import annotations

import math

import pytest

from launcher.report.figures import format_number, format_seconds


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.23456, "1.235"),
        (2e-4, "2e-4"),
        (0.00123456, "0.001235"),
        (53.57321, "53.57"),
        (1234567.0, "1,234,567"),
        (0.5, "0.5"),
        (-2.0, "-2"),
        (0, "0"),
        (1.5e20, "1.5e20"),
        (None, "\u2013"),
        (math.nan, "\u2013"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00:00"), (3725, "1:02:05"), (90061, "1 d 1:01:01"), (None, "\u2013")]
)
def test_durations(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text
