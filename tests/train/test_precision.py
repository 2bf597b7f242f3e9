"""Number formats and attention, chosen with a reason."""

from __future__ import annotations

import pytest

from launcher.base.config import from_dict
from launcher.base.errors import ConfigError
from launcher.train import precision
from launcher.train.precision import Choice, choose_attention, choose_precision, load_dtype

pytestmark = pytest.mark.train


class Card:
    type = "cuda"


@pytest.fixture
def probes(monkeypatch):
    """Probes that answer as told: what is wrong with each format."""
    answers: dict[str, str] = {}
    monkeypatch.setattr(precision, "_probe", lambda name, device: answers.get(name, ""))
    return answers


def test_no_card_computes_in_float32():
    import torch

    assert choose_precision("auto", torch.device("cpu")) == Choice("fp32", "no card")
    assert choose_precision("bf16", torch.device("cpu")) == Choice("bf16", "asked for")
    with pytest.raises(ConfigError, match="fp16 needs a card"):
        choose_precision("fp16", torch.device("cpu"))


def test_a_card_takes_the_first_that_works(probes):
    assert choose_precision("auto", Card()) == Choice("bf16", "a probe on the card works")
    probes["bf16"] = "no kernel"
    assert choose_precision("auto", Card()) == Choice("fp16", "a probe on the card works; bf16: no kernel")
    probes["fp16"] = "wrong"
    assert choose_precision("auto", Card()) == Choice("fp32", "bf16: no kernel; fp16: wrong")


def test_a_wish_that_does_not_work_is_an_error(probes):
    probes["bf16"] = "no kernel"
    with pytest.raises(ConfigError, match="bf16: no kernel"):
        choose_precision("bf16", Card())
    assert choose_precision("fp32", Card()) == Choice("fp32", "asked for")


def test_the_probe_itself():
    import torch

    assert precision._probe("bf16", torch.device("cpu")) == ""
    assert precision._probe_sdpa(torch.device("cpu"), torch.float32) == ""


def recipe(**sections):
    return from_dict({"model": {"path": "/m"}, "data": {"path": "/d"}, **sections})


def test_attention(monkeypatch):
    import torch

    cpu = torch.device("cpu")
    assert choose_attention(recipe(), cpu, torch.float32) == Choice("sdpa", "a probe works")
    monkeypatch.setattr(precision, "_probe_sdpa", lambda device, dtype: "no kernel")
    assert choose_attention(recipe(), cpu, torch.float32) == Choice("eager", "sdpa: no kernel")
    with pytest.raises(ConfigError, match="no kernel"):
        choose_attention(recipe(model={"path": "/m", "attention": "sdpa"}), cpu, torch.float32)


def test_weights_that_all_learn_are_read_in_float32():
    import torch

    assert load_dtype(recipe(), "bf16") == torch.bfloat16
    assert load_dtype(recipe(method="full"), "bf16") == torch.float32
