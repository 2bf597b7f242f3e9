"""Each cause provoked in a real small run, and named; healthy runs beside them get no verdict."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.report.diagnosis.rules import diagnose, put_into_words
from launcher.report.run_record import RunRecord, read_record
from tests.train.test_movement import NO_GRADIENT, OTHER_PARAMETERS
from tests.train.tiny import WORDS, Ranks, make_rows, recipe

pytestmark = pytest.mark.train

Train = Callable[..., RunRecord]

#: the head of another model: rows that belong to other tokens
FOREIGN_HEAD = """
import torch, launcher.train.job as job
real = job.apply_method
def apply_method(recipe, causal):
    tuned = real(recipe, causal)
    weight = causal.get_output_embeddings().weight
    weight.data = weight.data.roll(7, 0)
    return tuned
job.apply_method = apply_method
"""
FILE_ORDER = """
import launcher.train.pack as pack
pack.order_rows = lambda num_rows, seed, epoch: tuple(range(num_rows))
"""
SLOW_RANK = """
import os, time, launcher.train.loss as loss
real = loss.Objective.forward
def forward(self, batch):
    time.sleep(0.1 if os.environ["RANK"] == "1" else 0)
    return real(self, batch)
loss.Objective.forward = forward
"""
#: two ranks of a node that are held up in turn, as by a disk or a cooler that they share
SLOW_NODE = """
import itertools, os, time, launcher.train.loss as loss
real, turns = loss.Objective.forward, itertools.count()
def forward(self, batch):
    time.sleep(0.1 if int(os.environ["RANK"]) == 2 + next(turns) % 2 else 0)
    return real(self, batch)
loss.Objective.forward = forward
"""
SLOW_DATA = """
import time, launcher.train.ahead as ahead
real = ahead.make_batch
def make_batch(*arguments):
    time.sleep(0.06)
    return real(*arguments)
ahead.make_batch = make_batch
"""


@pytest.fixture(scope="module")
def train(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains as real ranks do, and reads what they left behind."""
    folder, count = tmp_path_factory.mktemp("causes"), 0

    def run(model: Path, rows: Path, size: int = 1, code: str = "", **sections: Any) -> RunRecord:
        nonlocal count
        count += 1
        settings = {"max_steps": 40, "global_batch_size": 8, "precision": "fp32", **sections.pop("train", {})}
        config = recipe(model, rows, train=settings, **sections)
        ran = ranks.train(config, folder / f"run-{count}", size, code=code)
        (ran.run_dir / "config.yaml").write_text(json.dumps(config))
        return read_record(ran.run_dir)

    return run


@pytest.fixture(scope="module")
def rows_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[tuple[str, str]]], Path]:
    """Writes questions and answers to a file."""
    folder = tmp_path_factory.mktemp("rows")

    def write(pairs: list[tuple[str, str]]) -> Path:
        path = folder / f"{len(list(folder.iterdir()))}.json"
        rows = [{"instruction": question, "input": "", "output": answer} for question, answer in pairs]
        path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def base(train: Train, model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learnt something: only such a one can be led astray."""
    rows = tmp_path_factory.mktemp("base") / "rows.json"
    rows.write_text(json.dumps(make_rows(60)))
    record = train(model_dir, rows, method="full", train={"learning_rate": 3e-3, "max_steps": 80})
    assert record.values("loss")[-1] < 1
    assert codes(record) == []  # a healthy run itself
    return record.path / "model"


@pytest.fixture(scope="module")
def new_rows(rows_of: Callable[[list[tuple[str, str]]], Path]) -> Path:
    """Rows that the base does not know: every second word."""
    words = WORDS.split()
    return rows_of(
        [
            (f"Say every second of {length} words from {n}", " ".join(words[(n + 2 * i) % len(words)] for i in range(length)))
            for n, length in ((n, (3, 9, 27)[n % 3]) for n in range(60))
        ]
    )  # fmt: skip


def codes(record: RunRecord) -> list[str]:
    for verdict in diagnose(record):
        for language in ("en", "zh"):
            assert "{" not in "".join(vars_of(put_into_words(verdict, language)))
    return [verdict.code for verdict in diagnose(record)]


def vars_of(words: Any) -> list[str]:
    return [getattr(words, name) for name in words.__dataclass_fields__]


@pytest.mark.parametrize(("method", "rate"), [("lora", 5e-4), ("freeze", 1e-4)])
def test_healthy(train: Train, base: Path, new_rows: Path, method: str, rate: float) -> None:
    record = train(
        base,
        new_rows,
        method=method,
        train={"learning_rate": rate, "eval_every": 10},
        data={"eval_fraction": 0.2},
    )
    assert codes(record) == []


@pytest.mark.parametrize(
    ("code", "what"), [(NO_GRADIENT, "no gradient"), (OTHER_PARAMETERS, "stay where they are")]
)
def test_nothing_is_trained(train: Train, base: Path, new_rows: Path, code: str, what: str) -> None:
    record = train(
        base, new_rows, code=code, method="freeze", freeze={"last_layers": 1}, train={"max_steps": 4}
    )
    assert codes(record) == ["NOTHING_TRAINED"]
    evidence = put_into_words(diagnose(record)[0], "en").evidence
    assert evidence.startswith("12 of 12 trainable tensors have ")
    assert what in evidence
    assert "model.layers.2.self_attn.q_proj.weight" in evidence


def test_the_first_loss_is_worse_than_a_blind_guess(train: Train, base: Path, new_rows: Path) -> None:
    record = train(base, new_rows, code=FOREIGN_HEAD, train={"max_steps": 2})
    assert codes(record) == ["FIRST_LOSS_HIGH"]
    assert "ln(320) = 5.77" in put_into_words(diagnose(record)[0], "en").evidence


def test_text_is_shredded(train: Train, base: Path, rows_of: Callable[[list[tuple[str, str]]], Path]) -> None:
    pairs = [
        (f"\u8bf7\u4ece{n}\u6570\u5230\u5341", "\u4e00\u4e8c\u4e09\u56db\u4e94" * (1 + n % 3))
        for n in range(24)
    ]
    assert "TEXT_SHREDDED" in codes(train(base, rows_of(pairs), train={"max_steps": 2}))


def test_steps_are_too_large(train: Train, base: Path, new_rows: Path) -> None:
    record = train(base, new_rows, train={"learning_rate": 0.3})
    assert codes(record) == ["RATE_TOO_HIGH"]
    assert (
        "train.learning_rate=1.41e-4 (usual for the method: 2e-5 to 0.001)"
        in put_into_words(diagnose(record)[0], "en").cure
    )


def test_steps_are_too_small(train: Train, base: Path, new_rows: Path) -> None:
    record = train(base, new_rows, train={"learning_rate": 1e-7})
    assert codes(record) == ["RATE_TOO_LOW"]
    assert "train.learning_rate=1.41e-4" in put_into_words(diagnose(record)[0], "en").cure


def test_rows_are_alike(train: Train, base: Path, rows_of: Callable[[list[tuple[str, str]]], Path]) -> None:
    question = f"Tell me once more, please, what {WORDS} may mean, in a few words, number "
    pairs = [(f"{question}{n}", "the quick brown fox") for n in range(40)]
    assert codes(train(base, rows_of(pairs), train={"max_steps": 4})) == ["ROWS_ALIKE"]
    copies = rows_of([(f"Say {n % 5}", " ".join(WORDS.split()[n % 5 :])) for n in range(40)])
    record = train(base, copies, train={"max_steps": 4})
    assert codes(record) == ["ROWS_ALIKE"]
    assert "only 12.5% of 40 rows" in put_into_words(diagnose(record)[0], "en").evidence


def test_rows_are_not_shuffled(train: Train, base: Path, new_rows: Path) -> None:
    record = train(base, new_rows, code=FILE_ORDER, train={"max_steps": 4})
    assert codes(record) == ["NOT_SHUFFLED"]
    assert "100% of 60 rows" in put_into_words(diagnose(record)[0], "en").evidence


def test_validation_parts_from_training(
    train: Train, base: Path, rows_of: Callable[[list[tuple[str, str]]], Path]
) -> None:
    draw = random.Random(3)
    rows = rows_of([(f"Say {n}", " ".join(draw.sample(WORDS.split(), 8))) for n in range(48)])
    settings = {"learning_rate": 3e-3, "eval_every": 6, "max_steps": 36}
    record = train(base, rows, method="full", train=settings, data={"eval_fraction": 0.5})
    assert codes(record) == ["VALIDATION_PARTS"]
    best = min(record.series("eval_loss"), key=lambda point: point[1])[0]
    assert diagnose(record)[0].step == best


def test_one_rank_is_slow(train: Train, base: Path, new_rows: Path) -> None:
    record = train(base, new_rows, 2, code=SLOW_RANK, train={"max_steps": 15})
    assert codes(record) == ["SLOW_RANK"]
    assert put_into_words(diagnose(record)[0], "en").evidence.startswith(
        "rank 1 was the slowest in 100% of 12 steps"
    )


def test_one_node_is_slow(train: Train, base: Path, new_rows: Path) -> None:
    record = train(base, new_rows, 4, code=SLOW_NODE, train={"max_steps": 15})
    nodes = [{"host": host, "num_ranks": 2} for host in ("node01", "node02")]
    plan = {"world_size": 4, "nodes": nodes}  # what the head writes for two hosts with two ranks each
    record = dataclasses.replace(record, plan=plan)
    assert codes(record) == ["SLOW_RANK"]
    evidence = put_into_words(diagnose(record)[0], "en").evidence
    assert evidence.startswith("node02 was the slowest in ")


def test_cards_wait_for_data(train: Train, base: Path, new_rows: Path) -> None:
    assert codes(train(base, new_rows, code=SLOW_DATA, train={"max_steps": 13})) == ["DATA_WAIT"]
