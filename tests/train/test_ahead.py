"""A micro-batch that was made ahead is the one that was asked for, or it is not used."""

from __future__ import annotations

import pytest

from launcher.train import ahead
from launcher.train.ahead import Ahead
from launcher.train.data import make_tokens
from launcher.train.pack import PackLimits
from launcher.train.template import Encoded

pytestmark = pytest.mark.train


class Card:
    type = "cuda"


def test_what_was_made_ahead_is_given_once_and_for_the_same_rows_alone(monkeypatch):
    made = []
    monkeypatch.setattr(ahead, "make_batch", lambda tokens, micro, *_: made.append(micro) or f"batch {micro}")
    tokens = make_tokens([Encoded([1, 2], [False, True])] * 3)
    limits, held = PackLimits(8, 8), Ahead()
    held.prepare(tokens, [[0, 1]], Card(), limits)
    assert held.take(tokens, [[0, 1]], Card(), limits) == "batch [[0, 1]]"
    assert made == [[[0, 1]]]
    assert held.take(tokens, [[0, 1]], Card(), limits) == "batch [[0, 1]]"
    held.prepare(tokens, [[2]], Card(), limits)
    assert held.take(tokens, [[1]], Card(), limits) == "batch [[1]]"
    assert len(made) == 4


def test_on_a_cpu_nothing_is_made_ahead(monkeypatch):
    import torch

    monkeypatch.setattr(ahead, "make_batch", lambda *_: pytest.fail("made"))
    Ahead().prepare(make_tokens([]), [[0]], torch.device("cpu"), PackLimits(8, 8))
