"""``dcu-launch generate`` as a user calls it: runs, adapters and models, questions from everywhere, and mistakes."""

from __future__ import annotations

import itertools
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.base.recipe import load_recipe
from launcher.commands.generate import generate
from launcher.train.data import demo_file

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]
DCU_LAUNCH = Path(sys.executable).parent / "dcu-launch"


@pytest.fixture
def ask(ranks, tmp_path) -> Callable[..., tuple[int, str]]:
    """Runs what the verb runs, with the words that a user gives, in a process that has torch already."""
    numbers = itertools.count()

    def run(*words: str | Path) -> tuple[int, str]:
        context = generate.make_context("generate", [str(word) for word in words])
        options = {name: value for name, value in context.params.items() if name != "python"}
        folder = tmp_path / f"asked-{next(numbers)}"
        return ranks.call("launcher.train.generate", [json.dumps(options)], folder)

    return run


def run_verb(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DCU_LAUNCH, "generate", *words], capture_output=True, text=True, timeout=120, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def rows_of(asked: tuple[int, str]) -> list[dict[str, str]]:
    code, output = asked
    assert code == 0, output
    return [json.loads(line) for line in output.splitlines()]


def test_a_run_folder_is_asked_beside_its_base(lora, ask, tmp_path):
    file = tmp_path / "q.txt"
    file.write_text("Say 3 words from 1\nSay 9 words from 2\n海光\n", encoding="utf-8")
    rows = rows_of(ask(lora.run_dir, file, "--compare", "--json", "--max-new-tokens", "6"))
    assert [row["prompt"] for row in rows] == ["Say 3 words from 1", "Say 9 words from 2", "海光"]
    adapter = lora.run_dir / "adapter"
    base = rows_of(ask(adapter, file, "--base-only", "--json", "--max-new-tokens", "6", "--cpu"))
    assert [row["answer"] for row in base] == [row["base_answer"] for row in rows]


def test_answers_are_those_of_transformers_and_peft(lora, ask, model_dir):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(lora.run_dir / "adapter")
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(model_dir), lora.run_dir / "adapter"
    )
    text = tokenizer.apply_chat_template(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "the quick"}],
        tokenize=False, add_generation_prompt=True,
    )  # fmt: skip
    ids = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        output = model.generate(input_ids=ids, max_new_tokens=8, do_sample=False, eos_token_id=[0, 2])
    expected = tokenizer.decode(output[0, ids.shape[1] :], skip_special_tokens=True).strip()
    words = ("-p", "the quick", "--system", "be brief", "--max-new-tokens", "8", "--precision", "fp32")
    assert ask(lora.run_dir, *words) == (0, expected + "\n")


def test_what_is_drawn_follows_the_seed(lora, ask):
    def draw(seed: str) -> str:
        words = ("--temperature", "1.5", "--seed", seed, "--max-new-tokens", "24", "-p", "a")
        return str(ask(lora.run_dir, *words)[1])

    first = draw("1")
    assert draw("1") == first != draw("2")


def test_without_a_terminal_questions_come_from_stdin(lora, ask):
    assert ask(lora.run_dir) == (2, "dcu-launch: error: -: holds no question\n")


def test_a_terminal_is_asked_until_its_end(lora):
    ours, theirs = pty.openpty()
    words = [DCU_LAUNCH, "generate", lora.run_dir, "--max-new-tokens", "3", "--compare"]
    with subprocess.Popen(words, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        os.close(theirs)
        os.write(ours, b"hello\n\x04")
        out, _ = process.communicate(timeout=120)
    os.close(ours)
    text = out.decode()
    assert process.returncode == 0, text
    assert text.startswith("One question a line, each on its own; Ctrl-D ends.\n")
    assert text.count("-- base\n") == text.count("-- base + adapter\n") == 1


def test_a_base_that_lies_elsewhere_and_one_that_is_another(lora, ask, model_dir, tmp_path):
    elsewhere = shutil.copytree(model_dir, tmp_path / "elsewhere")
    question = ("-p", "a", "--max-new-tokens", "2")
    assert ask(lora.run_dir, "--base", elsewhere, *question)[0] == 0
    config = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps({**config, "rope_theta": 5e5}))
    code, output = ask(lora.run_dir, "--base", elsewhere, *question)
    assert code == 2
    assert output.splitlines() == [
        f"dcu-launch: error: {lora.run_dir}/adapter: {elsewhere} is another base than it was trained on: "
        "config.json has other values",
        "  hint: --base MODEL names the right one; --allow-other-base takes this one all the same",
    ]
    assert ask(lora.run_dir, "--base", elsewhere, "--allow-other-base", *question)[0] == 0
    (elsewhere / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 2}))
    output = ask(lora.run_dir, "--base", elsewhere, "--allow-other-base", *question)[1]
    assert "another base than it was trained on: num_hidden_layers 3 -> 2" in output


def test_an_adapter_without_a_mark_has_to_fit(lora, ask, tmp_path):
    adapter = shutil.copytree(lora.run_dir / "adapter", tmp_path / "adapter")
    (adapter / "dcu_launch.json").unlink()
    assert ask(adapter, "-p", "a", "--max-new-tokens", "2")[0] == 0
    code, output = ask(adapter, "-p", "a", "--base", "demo")
    assert code == 2
    assert output.startswith(f"dcu-launch: error: {adapter}: does not fit onto its base: size mismatch")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["/nowhere", "-p", "a"], "/nowhere: there is no such run folder, adapter or model"),
        (["{empty}", "-p", "a"], "{empty} has no config.json: not a folder that transformers saved"),
        (["{young}", "-p", "a"], "{young}: the run has no adapter/ and no model/ yet"),
        (["demo", "--base", "demo", "-p", "a"], "--base: demo is no adapter and needs none"),
        (
            ["demo", "--compare", "-p", "a"],
            "--compare and --base-only need an adapter: this is a whole model",
        ),
        (["demo", "q.txt", "-p", "a"], "questions by --prompt and from a file: one of them"),
        (["demo", "/no/file"], "/no/file: cannot be read: No such file or directory"),
    ],
)
def test_mistakes(words, message, ask, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "young" / "checkpoints").mkdir(parents=True)
    places = {"empty": tmp_path / "empty", "young": tmp_path / "young"}
    code, output = ask(*(word.format(**places) for word in words))
    assert code == 2
    assert output.splitlines()[0] == f"dcu-launch: error: {message.format(**places)}"


def test_interpreters_that_cannot_be_used_are_told(tmp_path):
    ran = run_verb("demo", "-p", "a", "--python", "no-such-python")
    assert ran.returncode == 2
    assert ran.stderr == "dcu-launch: error: --python no-such-python: there is no such program\n"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    ran = run_verb("demo", "-p", "a", "--python", tmp_path / "bare" / "bin" / "python")
    assert ran.returncode == 2
    assert "cannot import the training stack: No module named 'torch'" in ran.stderr
    assert "hint: --python PATH names an interpreter that can" in ran.stderr


def test_the_demos_adapter_shows_what_it_learnt(ranks, ask, tmp_path):
    config = load_recipe(None, ["train.max_steps=30"])
    ran = ranks.train(config, tmp_path / "run", 2)
    rows = demo_file("rows.jsonl").read_text(encoding="utf-8").splitlines()[:3]
    (tmp_path / "q.jsonl").write_text("\n".join(rows), encoding="utf-8")
    words = ("--compare", "--json", "--max-new-tokens", "12")
    answers = rows_of(ask(ran.run_dir, tmp_path / "q.jsonl", *words))
    assert [row["prompt"] for row in answers] == [json.loads(row)["instruction"] for row in rows]
    assert all(row["answer"] != row["base_answer"] for row in answers)
