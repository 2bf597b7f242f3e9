"""The same rows and seed give the same training however many ranks share them, and a run that goes on is unbroken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.tiny import Ran, Ranks, recipe

pytestmark = pytest.mark.train


def weights(ran: Ran, step: int) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(ran.run_dir / "checkpoints" / f"step-{step:08d}" / "trainable.safetensors"))


def assert_same(one: Ran, other: Ran, step: int) -> None:
    assert other.losses == pytest.approx(one.losses, rel=1e-5)
    mine, theirs = weights(one, step), weights(other, step)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        # absolutely: AdamW turns rounding of tiny gradients into relative differences
        assert float((theirs[name] - tensor).abs().max()) < 1e-5, name


@pytest.fixture(scope="module")
def one_rank(ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Five steps of one rank; the last has four rows of 1 to 27 words."""
    config = recipe(model_dir, rows_file, train={"max_steps": 5, "global_batch_size": 10})
    return ranks.train(config, tmp_path_factory.mktemp("one") / "run")


def test_one_rank_learns(one_rank):
    assert len(one_rank.losses) == 5
    assert one_rank.metrics[2]["rows"] == 4
    assert one_rank.losses[3] < one_rank.losses[0]


@pytest.mark.parametrize(
    ("size", "train_keys", "data_keys"),
    [
        (2, {}, {}),
        (4, {}, {"packing": False}),
        (1, {"max_tokens_per_card": 130}, {"max_length": 130}),  # accumulation
        (2, {"max_tokens_per_card": 140}, {"max_length": 140}),  # accumulation, of unlike counts over ranks
    ],
    ids=["2 ranks", "4 ranks unpacked", "accumulated", "2 ranks accumulated"],
)
def test_any_split_of_the_rows_trains_the_same(
    one_rank, ranks, model_dir, rows_file, tmp_path, size, train_keys, data_keys
):
    keys = {"max_steps": 5, "global_batch_size": 10, **train_keys}
    ran = ranks.train(recipe(model_dir, rows_file, train=keys, data=data_keys), tmp_path / "run", size)
    assert_same(one_rank, ran, 5)


def test_ranks_without_rows_take_part(ranks, model_dir, rows_file, tmp_path):
    config = recipe(model_dir, rows_file, train={"max_steps": 2, "global_batch_size": 1})
    alone, three = ranks.train(config, tmp_path / "a" / "run"), ranks.train(config, tmp_path / "b" / "run", 3)
    assert_same(alone, three, 2)


@pytest.mark.parametrize(
    "sections",
    [{}, {"lora": {"dropout": 0.3}}, {"method": "freeze", "freeze": {"last_layers": 1}}],
    ids=["lora", "lora with dropout", "freeze"],
)
def test_a_run_that_goes_on_equals_an_unbroken_one(ranks, model_dir, rows_file, tmp_path, sections):
    keys = {"max_steps": 4, "save_every": 1, "scheduler": "constant", "warmup_ratio": 0.0}
    whole = ranks.train(
        recipe(model_dir, rows_file, train=keys, checkpoint={"keep": 9}, **sections), tmp_path / "a" / "r", 2
    )
    broken = tmp_path / "b" / "r"
    ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 2}, **sections), broken, 2)
    ran = ranks.train(recipe(model_dir, rows_file, train=keys, **sections), broken, 2)
    assert "goes on after step 2" in ran.outputs[0]
    assert ran.losses == whole.losses
    for name, tensor in weights(whole, 4).items():
        assert tensor.equal(weights(ran, 4)[name]), name


def test_a_run_goes_on_with_another_number_of_ranks(one_rank, ranks, model_dir, rows_file, tmp_path):
    keys = {"global_batch_size": 10, "scheduler": "constant", "warmup_ratio": 0.0}
    whole = ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 4}), tmp_path / "a" / "r")
    broken = tmp_path / "b" / "r"
    ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 2}), broken, 3)
    ran = ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 4}), broken, 2)
    assert_same(whole, ran, 4)
