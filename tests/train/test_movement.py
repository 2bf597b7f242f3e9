"""What the first steps say of parameters, in real ranks that train the tiny model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.train.tiny import Ranks, recipe

pytestmark = pytest.mark.train

NO_GRADIENT = """
import launcher.train.job as job
real = job.apply_method
def apply_method(recipe, causal):
    tuned = real(recipe, causal)
    for name, parameter in tuned.causal.named_parameters():
        if parameter.requires_grad and ".2." in name:
            parameter.register_hook(lambda gradient: gradient * 0)
    return tuned
job.apply_method = apply_method
"""
#: the optimizer holds copies: the classic of a model that was moved or wrapped after its optimizer was made
OTHER_PARAMETERS = """
import launcher.train.job as job
real = job.make_optimizer
def make_optimizer(recipe, causal, device):
    optimizer = real(recipe, causal, device)
    for group in optimizer.param_groups:
        group["params"] = [p.detach().clone().requires_grad_() for p in group["params"]]
    return optimizer
job.make_optimizer = make_optimizer
"""


def facts_of(rows: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    return {row["step"]: row["facts"] for row in rows if "facts" in row}


def test_what_learns_moves_and_the_first_row_says_what_a_curve_is_judged_by(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    ran = ranks.train(recipe(model_dir, rows_file), tmp_path / "run", size=2)
    facts = facts_of(ran.metrics)
    assert list(facts) == [1, 3]
    first = facts[1]
    assert (first["vocab_size"], first["rows"], first["eval_rows"], first["learning_rate"]) == (
        320,
        24,
        0,
        1e-3,
    )
    assert 1.5 < first["bytes_per_token"] < 6
    assert 0 < first["trainable_parameters"] < first["parameters"]
    assert first["file_order_share"] < 0.3
    assert facts[3]["trainable_tensors"] == 24  # q, k, v, o with A and B, in three blocks
    assert (facts[3]["without_gradient"], facts[3]["unmoved"]) == (0, 0)
    for row in ran.metrics:
        assert 0 < row["data_wait_s"] < row["slowest_step_s"] < row["step_s"]
        assert 0 < row["median_step_s"] <= row["slowest_step_s"]
        assert math.isfinite(row["loss"])


def test_parameters_without_gradient_are_named(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    config = recipe(model_dir, rows_file, method="freeze", freeze={"last_layers": 2})
    found = facts_of(ranks.train(config, tmp_path / "run", code=NO_GRADIENT).metrics)[3]
    assert found["without_gradient"] * 2 == found["trainable_tensors"]
    assert all(name.startswith("model.layers.2.") for name in found["without_gradient_names"])
    assert len(found["without_gradient_names"]) == 12
    assert found["unmoved"] == 0


def test_parameters_that_the_optimizer_does_not_hold_do_not_move(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    config = recipe(model_dir, rows_file, method="freeze", freeze={"last_layers": 1})
    ran = ranks.train(config, tmp_path / "run", code=OTHER_PARAMETERS)
    found = facts_of(ran.metrics)[3]
    assert found["without_gradient"] == 0
    assert found["unmoved"] == found["trainable_tensors"]
