"""Rows to tensors: what is cut, dropped, held back; and masks that keep rows apart."""

from __future__ import annotations

import json

import pytest

from launcher.base.config import from_dict
from launcher.base.errors import ConfigError
from launcher.train.data import load_data, make_batch, make_limits, make_mask, make_tokens
from launcher.train.model import load_tokenizer
from launcher.train.template import Encoded
from tests.train.tiny import recipe

pytestmark = pytest.mark.train


def load(model_dir, file, **data):
    return load_data(from_dict(recipe(model_dir, file, data=data)), load_tokenizer(str(model_dir)))


def test_rows_are_counted_and_held_back(model_dir, rows_file):
    data = load(model_dir, rows_file, eval_fraction=0.25)
    assert (len(data.train.rows), len(data.eval.rows)) == (18, 6)
    assert data.messages[0].startswith("18 rows to train on, 6 held back; ")


def test_rows_cut_before_their_answer_are_counted_and_never_trained(model_dir, tmp_path):
    rows = [{"instruction": "wolf " * n, "output": "dog"} for n in (1, 100, 2)]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    data = load(model_dir, tmp_path / "a.json", max_length=32)
    assert len(data.train.rows) == 2
    assert all(count > 0 for count in data.train.labels)
    assert data.messages[1].endswith("1 of 3 rows are longer than 32 tokens and were cut")
    assert data.messages[2].endswith("1 rows left out: cut before their answer begins")


def test_it_is_an_error_when_no_answer_is_left(model_dir, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"instruction": "wolf " * 99, "output": "dog"}]))
    with pytest.raises(ConfigError, match="no answer is left in any of 1 rows"):
        load(model_dir, tmp_path / "a.json", max_length=32)


def test_bad_rows_that_are_left_out_are_told(model_dir, tmp_path):
    (tmp_path / "a.jsonl").write_text('null\n{"instruction": "a", "output": "b"}\n')
    data = load(model_dir, tmp_path / "a.jsonl", on_bad_row="skip")
    assert "1 bad rows left out, the first: " in data.messages[1]


def test_a_batch_of_packed_rows():
    tokens = make_tokens([Encoded([5, 6, 7], [False, True, True]), Encoded([8, 9], [False, True])])
    batch = make_batch(tokens, [[0, 1], [1]], "cpu")
    assert batch.input_ids.tolist() == [[5, 6, 7, 8, 9], [8, 9, 0, 0, 0]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 4]]
    # the place before each learnt token predicts it; the first token of a row is predicted by nothing
    assert batch.label_places.tolist() == [0, 1, 3, 5]
    assert batch.targets.tolist() == [6, 7, 9, 9]


def test_one_row_a_sequence_needs_no_mask():
    tokens = make_tokens([Encoded([5, 6, 7], [False, True, True]), Encoded([8, 9], [False, True])])
    assert make_batch(tokens, [[0], [1]], "cpu").mask is None


def test_the_first_token_of_a_row_is_never_a_label():
    tokens = make_tokens([Encoded([5, 6], [True, True])])
    assert tokens.labels == (1,)
    assert make_batch(tokens, [[0]], "cpu").targets.tolist() == [6]


def test_an_empty_batch_has_no_labels():
    batch = make_batch(make_tokens([]), [], "cpu")
    assert batch.input_ids.tolist() == [[0]]
    assert batch.targets.tolist() == []


def test_the_mask_lets_tokens_look_back_inside_their_row_alone():
    import torch

    allowed = make_mask(torch.tensor([[1, 1, 2, 2, 0, 0]]))[0, 0] == 0
    assert allowed.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 0],  # padding sees padding: a line with nothing to see would be NaN in half precision
        [0, 0, 0, 0, 1, 1],
    ]


def test_limits_fit_the_longest_row(model_dir, rows_file):
    data = load(model_dir, rows_file)
    values = from_dict(recipe(model_dir, rows_file, train={"max_tokens_per_card": 4096}))
    assert make_limits(values, True, data.train).sequence_length == 512
    assert (
        make_limits(values, True, make_tokens([Encoded([0] * 3000, [True] * 3000)])).sequence_length == 3000
    )


def test_limits_left_open_suit_the_device(model_dir, rows_file):
    data = load(model_dir, rows_file)
    values = from_dict(recipe(model_dir, rows_file, train={"max_tokens_per_card": None}))
    card, cpu = make_limits(values, True, data.train), make_limits(values, False, data.train)
    assert (card.max_tokens, card.sequence_length) == (8192, 512)
    assert cpu.max_tokens == cpu.sequence_length == max(256, *data.train.lengths)
