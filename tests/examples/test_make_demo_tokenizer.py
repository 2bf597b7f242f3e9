"""The built-in demo's tokenizer: small, whole, read by both layouts of transformers, and made from the rows as they are."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "launcher" / "train" / "demo"
EXAMPLES = ROOT / "examples"


def read_json(name):
    return json.loads((DEMO / name).read_text(encoding="utf-8"))


def all_rows():
    lines = (EXAMPLES / "dcu_instructions.jsonl").read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines if line]


def test_the_package_data_stays_small():
    assert (DEMO / "tokenizer.json").stat().st_size < 300_000
    assert (DEMO / "rows.jsonl").stat().st_size < 100_000


def test_the_layout_is_the_one_that_old_releases_read():
    model = read_json("tokenizer.json")["model"]
    assert model["type"] == "BPE"
    assert 4000 <= len(model["vocab"]) <= 8192
    assert all(type(merge) is str and merge.count(" ") == 1 for merge in model["merges"])
    config = read_json("tokenizer_config.json")
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert config["model_input_names"] == ["input_ids", "attention_mask"]
    assert "<|im_start|>" in config["chat_template"]


def test_every_byte_can_be_spelt():
    vocab = read_json("tokenizer.json")["model"]["vocab"]
    assert sum(len(token) == 1 for token in vocab) >= 256


@pytest.mark.train
def test_transformers_loads_it_and_text_comes_back():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|endoftext|>")
    assert len({tokenizer.eos_token_id, tokenizer.pad_token_id}) == 2
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1
    for text in [*(row["output"] for row in all_rows()), "\x00 é 𠀀\n\t"]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert set(tokenizer("x")) == {"input_ids", "attention_mask"}


@pytest.mark.train
def test_its_chat_template_ends_an_answer_with_the_end_mark():
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    question = [{"role": "user", "content": "DTK?"}]
    asked = tokenizer.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
    assert asked == "<|im_start|>user\nDTK?<|im_end|>\n<|im_start|>assistant\n"
    answered = tokenizer.apply_chat_template(
        [*question, {"role": "assistant", "content": "25.04"}], tokenize=False
    )
    assert answered == asked + "25.04<|im_end|>\n"


@pytest.mark.train
def test_it_is_made_from_the_rows_as_they_are_now(tmp_path):
    from tokenizers import Tokenizer

    script = EXAMPLES / "make_demo_tokenizer.py"
    subprocess.run([sys.executable, script, "--out", tmp_path], check=True, capture_output=True)
    again = "run examples/make_demo_tokenizer.py"
    for name in ("rows.jsonl", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (DEMO / name).read_bytes(), again
    # Another release of tokenizers may break ties in another way: what counts is how well it fits these rows.
    answers = [row["output"] for row in all_rows()]
    made, shipped = (
        sum(len(encoding.ids) for encoding in Tokenizer.from_file(str(path)).encode_batch(answers))
        for path in (tmp_path / "tokenizer.json", DEMO / "tokenizer.json")
    )
    assert shipped == pytest.approx(made, rel=0.01), again
