"""Usual and unusual rates of each method."""

from __future__ import annotations

import pytest

from launcher.base.config import from_dict
from launcher.base.learning_rate import pick_learning_rate, warn_learning_rate

PATHS = {"model": {"path": "/m"}, "data": {"path": "/d"}}


@pytest.mark.parametrize(
    ("method", "rate", "warns"),
    [
        ("lora", 2e-5, False), ("lora", 1e-3, False), ("lora", 2e-3, True), ("lora", 1e-5, True),
        ("full", 5e-5, False), ("full", 1e-4, True), ("freeze", 1e-4, False), ("freeze", 1e-3, True),
    ],
)  # fmt: skip
def test_rates_far_from_the_usual_are_warned_of(method, rate, warns):
    recipe = from_dict({**PATHS, "method": method, "train": {"learning_rate": rate}})
    message = warn_learning_rate(recipe)
    assert bool(message) is warns
    assert not warns or f"method {method} (" in message


@pytest.mark.parametrize("method", ["lora", "freeze", "full"])
def test_each_method_has_a_usual_rate(method):
    recipe = from_dict({**PATHS, "method": method})
    assert 0 < pick_learning_rate(recipe) < 1e-3
    assert warn_learning_rate(recipe) == ""
