from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.fold import MAX_HELD, WINDOW_S, FoldedLine, LineFold, format_ranks

# a step: a rank says one of a few words, or (None) a moment passes
STEPS = st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.sampled_from("abc"))), max_size=60)


def play(steps: list[tuple[int, str] | None]) -> list[FoldedLine]:
    fold = LineFold(4)
    shown: list[FoldedLine] = []
    now = 0.0
    for step in steps:
        if step is None:
            now += 0.1
            shown += fold.take_old(now)
        else:
            fold.add(*step)
            shown += fold.take_complete()
    return shown + fold.take_all()


@given(STEPS)
def test_each_rank_reads_its_own_lines_in_order_and_none_is_lost(steps: list[tuple[int, str] | None]) -> None:
    shown = play(steps)
    for rank in range(4):
        said = [step[1] for step in steps if step is not None and step[0] == rank]
        assert [line.text for line in shown if rank in line.ranks] == said
    assert all(len(set(line.ranks)) == len(line.ranks) for line in shown)


@given(st.permutations([0, 1, 2, 3]), st.lists(st.sampled_from("ab"), max_size=10))
def test_what_all_ranks_say_in_one_moment_is_one_line_each(order: list[int], words: list[str]) -> None:
    shown = play([(rank, word) for rank in order for word in words])
    assert [(line.text, sorted(line.ranks)) for line in shown] == [(word, [0, 1, 2, 3]) for word in words]


def test_a_line_waits_for_the_others_no_longer_than_the_window() -> None:
    fold = LineFold(4)
    fold.add(0, "x")
    assert fold.take_old(5.0) == []
    fold.add(1, "x")
    assert fold.take_old(5.0 + WINDOW_S - 0.01) == []
    assert [line.ranks for line in fold.take_old(5.0 + WINDOW_S)] == [[0, 1]]
    fold.add(2, "x")
    assert [line.ranks for line in fold.take_all()] == [[2]]


def test_a_line_of_all_ranks_does_not_wait() -> None:
    fold = LineFold(2)
    fold.add(0, "x")
    assert fold.take_complete() == []
    fold.add(1, "x")
    assert [line.ranks for line in fold.take_complete()] == [[0, 1]]


def test_no_more_lines_are_held_than_allowed() -> None:
    fold = LineFold(2)
    for number in range(MAX_HELD + 3):
        fold.add(0, str(number))
    assert [line.text for line in fold.take_complete()] == ["0", "1", "2"]
    assert len(fold.take_all()) == MAX_HELD


@pytest.mark.parametrize(
    ("ranks", "text"),
    [([], ""), ([3], "3"), ([1, 0], "0,1"), ([0, 1, 2, 7, 9, 10, 11], "0-2,7,9-11"), ([4, 4, 5], "4,5")],
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert format_ranks(ranks) == text
