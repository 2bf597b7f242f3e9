"""Time limits as Slurm writes them, and the time to save in."""

from __future__ import annotations

import pytest

from launcher.base.errors import UsageError
from launcher.slurm.time_limit import parse_time, pick_save_grace, pick_save_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("10:30", 630), ("1:30:00", 5400), ("12:00:00", 43200), ("2-12", 216000), ("1-0:30", 88200),
     ("1-00:00:01", 86401), ("0", 0), ("UNLIMITED", None), ("infinite", None)],
)  # fmt: skip
def test_a_limit_in_each_of_its_forms(text: str, seconds: int | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "1h", "1:2:3:4", "1-", "-5", "12:00:00 ", "\u0661"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a time as Slurm writes it"):
        parse_time(text)


@pytest.mark.parametrize(
    ("asked", "limit", "picked"),
    [
        (None, None, 300),
        (None, 43200, 300),
        (None, 120, 24),
        ("0", 120, 0),
        ("30s", 120, 30),
        ("600", None, 600),
        ("5m", None, 300),
    ],
)
def test_ranks_are_asked_in_time(asked: str | None, limit: int | None, picked: int) -> None:
    assert pick_save_time(asked, limit) == picked


def test_a_limit_that_leaves_no_time_to_train_is_refused() -> None:
    with pytest.raises(UsageError, match="the whole job has 120 s"):
        pick_save_time("120", 120)
    with pytest.raises(UsageError, match="65535 s at most"):
        pick_save_time("70000", None)


@pytest.mark.parametrize("text", ["", "-5", "soon", "5 m", "1.5"])
def test_what_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected seconds"):
        pick_save_time(text, None)


def test_some_of_that_time_is_for_the_end() -> None:
    assert [pick_save_grace(seconds) for seconds in (300, 24, 4, 1)] == [270, 18, 3, 1]
