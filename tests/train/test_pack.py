"""Plans of steps: the same rows whatever the number of ranks, each once, within the limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.train.pack import (
    PackLimits,
    order_rows,
    pack_rows,
    plan_step,
    rows_of_step,
    share_rows,
    split_rows,
    steps_per_epoch,
)


def test_an_epoch_holds_each_row_once_and_its_last_step_may_be_smaller():
    steps = [rows_of_step(step, 7, 3, seed=1) for step in (1, 2, 3)]
    assert [len(rows) for rows in steps] == [3, 3, 1]
    assert sorted(row for rows in steps for row in rows) == list(range(7))
    assert steps_per_epoch(7, 3) == 3


def test_order_is_drawn_from_seed_and_epoch():
    assert order_rows(50, 1, 0) == order_rows(50, 1, 0)
    assert order_rows(50, 1, 0) != order_rows(50, 1, 1)
    assert order_rows(50, 1, 0) != order_rows(50, 2, 0)
    assert rows_of_step(4, 7, 3, seed=1) == list(order_rows(7, 1, 1)[:3])


def test_order_never_changes_between_versions():
    # a run that goes on after an upgrade must not see rows twice
    assert list(order_rows(8, 42, 0)) == [1, 2, 5, 7, 6, 0, 3, 4]
    assert split_rows(10, 0.2, 42) == ([0, 1, 2, 3, 4, 6, 7, 9], [5, 8])


def test_held_back_rows_are_not_trained_on():
    train, held = split_rows(100, 0.1, 7)
    assert len(held) == 10
    assert sorted(train + held) == list(range(100))
    assert split_rows(5, 0.1, 7)[1] == []


@given(
    lengths=st.lists(st.integers(1, 64), min_size=1, max_size=40),
    num_ranks=st.integers(1, 9),
    packing=st.booleans(),
    max_tokens=st.sampled_from([64, 100, 256, 1000]),
)
def test_every_row_is_computed_once_within_the_limits(lengths, num_ranks, packing, max_tokens):
    limits = PackLimits(max_tokens, 64, packing)
    plan = plan_step(range(len(lengths)), lengths, num_ranks, limits)
    assert len(plan) == num_ranks
    assert len({len(micros) for micros in plan}) == 1
    seen = [row for micros in plan for micro in micros for sequence in micro for row in sequence]
    assert sorted(seen) == list(range(len(lengths)))
    for micro in (m for micros in plan for m in micros if m):
        longest = max(sum(lengths[row] for row in sequence) for sequence in micro)
        assert longest * len(micro) <= max_tokens * (17 / 16 if packing else 1)
        assert sum(lengths[row] for sequence in micro for row in sequence) <= max_tokens * 17 / 16
        assert packing or all(len(sequence) == 1 for sequence in micro)


def test_ranks_without_rows_run_empty_packs():
    plan = plan_step([3], [5, 5, 5, 5], 3, PackLimits(64, 64))
    assert sorted(plan) == [[[]], [[]], [[[3]]]]


def test_shares_have_about_as_many_tokens():
    lengths = [100, 1, 50, 49, 2, 98, 100]
    shares = share_rows(range(7), lengths, 2)
    loads = [sum(lengths[row] for row in share) for share in shares]
    assert sorted(row for share in shares for row in share) == list(range(7))
    assert abs(loads[0] - loads[1]) <= 2


@pytest.mark.parametrize(
    ("packing", "expected"),
    [(True, [[[0, 3], [1, 2]]]), (False, [[[0], [1]], [[2], [3]]])],
)
def test_packing_fills_sequences(packing, expected):
    assert pack_rows(range(4), [60, 40, 20, 4], PackLimits(128, 64, packing)) == expected


def test_rows_that_fill_a_pack_are_not_torn_apart_by_a_little_padding():
    lengths = [30] * 34  # 1,020 tokens: three sequences of 330, 330 and 360
    plan = pack_rows(range(34), lengths, PackLimits(1024, 400))
    assert [len(sequence) for micro in plan for sequence in micro] == [12, 11, 11]
    assert len(plan) == 1
