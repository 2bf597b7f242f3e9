from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from launcher.train.pack import order_rows
from launcher.train.row_facts import describe_rows, measure_alike, measure_order, take_evenly, warn_of_shreds
from launcher.train.rows import Row, Turn


@dataclass
class Words:
    """A tokenizer that knows whole words; unknown ones are 0."""

    known: tuple[str, ...]
    unk_token_id: int | None = 0

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        assert not add_special_tokens
        return {"input_ids": [[int(word in self.known) for word in text.split()] for text in texts]}


def row(question: str, answer: str) -> Row:
    return Row((Turn("user", question), Turn("assistant", answer)), "")


def test_figures_of_rows() -> None:
    rows = [row("a bb", "ccc"), row("a bb", "ccc"), row("\u4f60", "a")]
    facts = describe_rows(rows, Words(("a", "bb")))
    assert facts["bytes_per_token"] == pytest.approx((8 + 8 + 5) / 8)
    assert facts["chars_per_token"] == pytest.approx((8 + 8 + 3) / 8)
    assert facts["unknown_share"] == pytest.approx(3 / 8)
    assert facts["distinct_share"] == pytest.approx(2 / 3)


def test_without_rows_or_an_unknown_token_there_is_nothing_to_say() -> None:
    assert describe_rows([], Words(())) == {}
    assert describe_rows([row("a", "b")], Words((), None))["unknown_share"] == 0.0


def test_rows_are_alike_when_most_of_their_pieces_are() -> None:
    alike = [f"Please translate the following sentence into French, thank you: {n}" for n in range(50)]
    words = [f"word{n}" for n in range(300)]
    draw = random.Random(1)
    different = [" ".join(draw.sample(words, 12)) for _ in range(50)]
    assert measure_alike(alike) > 0.8
    assert measure_alike(different) < 0.2
    assert measure_alike(["one"]) == 0.0


def test_order_of_a_file_is_told_from_a_shuffled_one() -> None:
    assert measure_order(range(100)) == 1.0
    assert measure_order(order_rows(1000, 42, 0)) < 0.02
    assert measure_order([3]) == 0.0


def test_a_sample_is_spread_over_all_rows() -> None:
    rows = [row(str(n), "x") for n in range(1000)]
    assert [sampled.turns[0].text for sampled in take_evenly(rows, 4)] == ["0", "250", "500", "750"]
    assert len(take_evenly(rows[:3], 200)) == 3


def test_a_tokenizer_that_shreds_the_text_is_warned_of():
    facts = {"bytes_per_token": 1.2, "chars_per_token": 0.4, "unknown_share": 0.0}
    assert warn_of_shreds(facts).startswith("a token holds 0.40 characters (1.2 bytes) of these rows")
    assert warn_of_shreds({**facts, "bytes_per_token": 2.0}) == ""
    unknown = {**facts, "unknown_share": 0.3}
    assert warn_of_shreds(unknown) == "30% of the tokens of these rows are unknown to this model's tokenizer"
    assert warn_of_shreds({}) == ""
