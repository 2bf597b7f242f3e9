"""Answers to fixed questions during training: what the trained model says later, on any number of ranks, across a resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from launcher.base.recipe import load_recipe
from launcher.report.page.build import build_page
from launcher.report.page.markup import escape
from launcher.report.run_record import read_records
from tests.report.folders import Page
from tests.train.tiny import Ran, Ranks, recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]
QUESTIONS = ["Say 3 words from 1", "海光 DCU, 是什么?"]


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Starts ranks that need not import DeepSpeed each."""
    starter = Ranks(modules=("deepspeed",), variables={"DS_ACCELERATOR": "cpu"})
    yield starter
    starter.close()


def settings(model: Path, rows: Path, max_steps: int) -> dict:
    train = {"max_steps": max_steps, "eval_every": 2, "samples": QUESTIONS, "sample_tokens": 8}
    return recipe(model, rows, train=train, data={"eval_fraction": 0.2})


def samples_of(ran: Ran) -> list[dict]:
    return [json.loads(line) for line in (ran.run_dir / "samples.jsonl").read_text("utf-8").splitlines()]


def test_answers_are_those_of_the_base_and_then_of_the_adapter(ranks, model_dir, rows_file, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ran = ranks.train(settings(model_dir, rows_file, 3), tmp_path / "run", 2)
    found = samples_of(ran)
    assert [(row["step"], row["prompt"]) for row in found] == [
        (step, question) for step in (0, 2, 3) for question in QUESTIONS
    ]
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    expected = []
    for wrap in (lambda m: m, lambda m: PeftModel.from_pretrained(m, ran.run_dir / "adapter")):
        asked = wrap(model)
        for question in QUESTIONS:
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
            )
            ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                out = asked.generate(input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=[0, 2])
            expected.append(tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip())
    assert [row["answer"] for row in found if row["step"] != 2] == expected


def test_ranks_that_hold_pieces_of_the_weights_answer_together(ranks, model_dir, rows_file, tmp_path):
    config = settings(model_dir, rows_file, 2)
    alone = samples_of(ranks.train(config, tmp_path / "alone"))
    config |= {"engine": "deepspeed", "deepspeed": {"zero_stage": 3, "config": None}}
    assert samples_of(ranks.train(config, tmp_path / "zero", 2)) == alone


@pytest.mark.parametrize(
    "method",
    [
        {"method": "lora", "lora": {"dropout": 0.3}},
        {"method": "freeze", "freeze": {"last_layers": 1}},
        {"method": "full", "engine": "deepspeed", "deepspeed": {"zero_stage": 2, "config": None}},
    ],
    ids=["lora", "freeze", "zero2"],
)
def test_training_is_the_same_with_and_without_questions(ranks, model_dir, rows_file, tmp_path, method):
    asked = settings(model_dir, rows_file, 3)
    for key, value in method.items():
        asked[key] = {**asked[key], **value} if isinstance(value, dict) else value
    plain = {**asked, "train": {**asked["train"], "samples": []}}
    one = ranks.train(plain, tmp_path / "plain" / "run", 2)
    other = ranks.train(asked, tmp_path / "asked" / "run", 2)
    assert not (one.run_dir / "samples.jsonl").exists()
    assert [row["step"] for row in samples_of(other)] == [0, 0, 2, 2, 3, 3]
    for figure in ("loss", "eval_loss", "grad_norm"):
        assert [row.get(figure) for row in one.metrics] == [row.get(figure) for row in other.metrics]


def test_the_page_shows_the_answers_of_a_real_run(ranks, model_dir, rows_file, tmp_path):
    ran = ranks.train(settings(model_dir, rows_file, 3), tmp_path / "run")
    rows = samples_of(ran)
    assert any(row["answer"] for row in rows)
    page = Page(build_page(read_records([ran.run_dir]), "en"))
    shown = [cells for cells in page.cells["samples"] if cells[0] in ("before", "2", "3")]
    expected = []
    for question in QUESTIONS:
        assert question in page.texts["samples"]
        # a page holds no control characters, of which a model of 0.2 M parameters says some
        answers = [unescape(escape(row["answer"])) for row in rows if row["prompt"] == question]
        expected += [list(pair) for pair in zip(("before", "2", "3"), answers, strict=True)]
    assert shown == expected


#: asks itself to end while the second answers of the run are being written
ENDED = """
import os, signal, launcher.train.samples as samples
take, make = samples.Sampler.take, samples._make_batch
steps = []
def spied_take(self, model, step, stop):
    steps.append(step)
    take(self, model, step, stop)
def spied_make(*arguments):
    if steps[-1] == 2 and os.environ["RANK"] == "0":
        os.kill(os.getpid(), signal.SIGTERM)
    return make(*arguments)
samples.Sampler.take, samples._make_batch = spied_take, spied_make
"""


@pytest.mark.parametrize("engine", ["ddp", "deepspeed"])
def test_a_request_to_end_breaks_answers_off(ranks, model_dir, rows_file, tmp_path, engine):
    config = settings(model_dir, rows_file, 4)
    config |= {"engine": engine, "deepspeed": {"zero_stage": 3, "config": None}}
    ended = ranks.end(config, tmp_path / "run", 2, code=ENDED)
    assert ended.codes == [143, 143], ended.outputs
    assert [row["step"] for row in samples_of(ended)] == [0, 0]
    assert [row["step"] for row in ended.metrics] == [1, 2, 3]
    ran = ranks.train(config, tmp_path / "run", 2)
    assert [row["step"] for row in samples_of(ran)] == [0, 0, 4, 4]


def test_a_run_that_goes_on_has_each_answer_once(ranks, model_dir, rows_file, tmp_path):
    ranks.train(settings(model_dir, rows_file, 2), tmp_path / "run")
    with (tmp_path / "run" / "samples.jsonl").open("a") as file:
        file.write('{"step": 4, "prompt": "of an attempt that was lost"}\n{"step":')
    ran = ranks.train(settings(model_dir, rows_file, 4), tmp_path / "run")
    assert [row["step"] for row in samples_of(ran)] == [0, 0, 2, 2, 4, 4]


def test_a_question_longer_than_a_row_is_refused(ranks, model_dir, rows_file, tmp_path):
    config = settings(model_dir, rows_file, 2)
    config["train"]["samples"] = ["word " * 2000]
    ran = ranks.end(config, tmp_path / "run", 2)
    assert ran.codes == [2, 2]
    told = [line for output in ran.outputs for line in output.splitlines() if "error" in line]
    assert len(told) == 1
    assert told[0].startswith("dcu-launch: error: train.samples: 'word word")
    assert told[0].endswith("data.max_length is 1024")


def test_a_question_may_hold_commas(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("model: {path: demo}\ndata: {path: demo}\ntrain: {samples: 'Hello, who are you?'}\n")
    assert load_recipe(file)["train"]["samples"] == ["Hello, who are you?"]
    words = ["train.samples=[one, two]"]
    assert load_recipe(file, words)["train"]["samples"] == ["one", "two"]
