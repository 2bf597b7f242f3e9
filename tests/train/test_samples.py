"""Answers to fixed questions during training: what the trained model says later, on any number of ranks, across a resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.recipe import load_recipe
from tests.train.tiny import Ran, recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]
QUESTIONS = ["Say 3 words from 1", "海光 DCU, 是什么?"]


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
