"""The same rows and seed give the same training however many ranks share them, and a run that goes on is unbroken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.train.checkpoint import find_newest
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


def test_activations_computed_twice_train_the_same_and_every_adapter_learns(
    one_rank, ranks, model_dir, rows_file, tmp_path
):
    keys = {"max_steps": 5, "global_batch_size": 10, "gradient_checkpointing": True, "save_every": 1}
    config = recipe(model_dir, rows_file, train=keys, checkpoint={"keep": 5})
    ran = ranks.train(config, tmp_path / "run", 2)
    assert_same(one_rank, ran, 5)
    second = {name: tensor for name, tensor in weights(ran, 1).items() if "lora_B" in name}
    assert len(second) == 12
    assert all(bool(tensor.any()) for tensor in second.values())


#: one rank comes to each save long after the others
LATE = """
import os, time, launcher.train.loop as loop
def save(*words, save=loop.save):
    time.sleep(0.5 if os.environ["RANK"] == "1" else 0)
    save(*words)
loop.save = save
"""


def test_a_rank_that_is_late_at_each_save_harms_no_checkpoint(
    one_rank, ranks, model_dir, rows_file, tmp_path
):
    keys = {"max_steps": 5, "global_batch_size": 10, "save_every": 1}
    config = recipe(model_dir, rows_file, train=keys, checkpoint={"keep": 1})
    ran = ranks.train(config, tmp_path / "run", 2, code=LATE)
    assert_same(one_rank, ran, 5)
    left = sorted(path.name for path in (ran.run_dir / "checkpoints").iterdir())
    assert left == ["latest", "step-00000005"]
    assert find_newest(ran.run_dir) == (ran.run_dir / "checkpoints" / "step-00000005", [])


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


@pytest.fixture(scope="module")
def long_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven rows with 1 to some 200 label tokens: no step of four is even."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
    answers = [" ".join(words[i % len(words)] for i in range(n)) for n in (1, 190, 5, 20, 60, 2, 90)]
    rows = [{"instruction": f"Say {i}", "input": "", "output": answer} for i, answer in enumerate(answers)]
    file = tmp_path_factory.mktemp("long") / "rows.json"
    file.write_text(json.dumps(rows), encoding="utf-8")
    return file


def test_seven_unlike_rows_train_the_same_on_any_ranks_and_each_counts_once(
    ranks, model_dir, long_rows, tmp_path
):
    def train(name: str, size: int, keys: dict[str, Any]) -> Ran:
        config = recipe(
            model_dir, long_rows, data={"max_length": 400},
            train={"max_steps": 5, "global_batch_size": 4, **keys},
        )  # fmt: skip
        return ranks.train(config, tmp_path / name / "run", size)

    alone = train("1x4", 1, {})
    assert [row["rows"] for row in alone.metrics] == [4, 3, 4, 3, 4]
    labels = [row["label_tokens"] for row in alone.metrics]
    assert labels[0] + labels[1] == labels[2] + labels[3] > 368  # all seven, each once an epoch
    assert_same(alone, train("2x2", 2, {}), 5)
    assert_same(alone, train("1x1x4", 1, {"max_tokens_per_card": 400}), 5)
    assert_same(alone, train("4x1", 4, {"max_tokens_per_card": 400}), 5)


def test_four_ranks_are_saved_and_two_go_on(ranks, model_dir, rows_file, tmp_path):
    keys = {"global_batch_size": 8, "scheduler": "constant", "warmup_ratio": 0.0}
    whole = ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 4}), tmp_path / "a" / "r", 4)
    broken = tmp_path / "b" / "r"
    ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 2}), broken, 4)
    ran = ranks.train(recipe(model_dir, rows_file, train={**keys, "max_steps": 4}), broken, 2)
    assert_same(whole, ran, 4)


#: dies without a word in the middle of a save: at the given one of all moments at which a file is made sure of
KILLED = """
import os, signal, launcher.train.checkpoint as checkpoint
moments = [0]
def sync(path, sync=checkpoint._sync):
    moments[0] += 1
    if moments[0] == MOMENT:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(path)
checkpoint._sync = sync
"""


def kill_while_saving(ranks: Ranks, config: dict[str, Any], folder: Path, moment: int) -> Ran:
    """Kill a run at a moment of a save, go on, and compare with one that nothing happened to."""
    ran = ranks.end(config, folder / "run", code=KILLED.replace("MOMENT", str(moment)))
    assert ran.codes == [-9], ran.outputs
    newest, _ = find_newest(folder / "run")
    on = ranks.train(config, folder / "run")
    assert ("goes on after step" in on.outputs[0]) == (newest is not None)
    assert not list((folder / "run" / "checkpoints").glob(".*"))
    return on


@pytest.mark.parametrize("moment", [2, 9, 16])
def test_a_run_killed_in_the_middle_of_a_save_goes_on_from_the_whole_one_before(
    ranks, model_dir, rows_file, tmp_path, moment
):
    config = recipe(model_dir, rows_file, train={"max_steps": 4, "save_every": 1})
    whole = ranks.train(config, tmp_path / "whole" / "run")
    on = kill_while_saving(ranks, config, tmp_path, moment)
    assert on.losses == whole.losses


@pytest.mark.soak
def test_twenty_kills_while_saving(ranks, model_dir, rows_file, tmp_path):
    config = recipe(model_dir, rows_file, train={"max_steps": 4, "save_every": 1})
    whole = ranks.train(config, tmp_path / "whole" / "run")
    for moment in range(1, 21):
        on = kill_while_saving(ranks, config, tmp_path / str(moment), moment)
        assert on.losses == whole.losses, moment
