"""The result: an adapter that peft loads, a model that transformers loads, and answers from both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.recipe import load_recipe
from launcher.train.base_mark import mark_base
from launcher.train.checkpoint import read_manifest
from tests.train.tiny import recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]


def test_the_adapter_loads_with_peft_alone_and_changes_answers(lora, model_dir):
    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    adapter = lora.run_dir / "adapter"
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert len(tensors) == 3 * 4 * 2
    assert all(bool(tensor.any()) for tensor in tensors.values())
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    ids = AutoTokenizer.from_pretrained(adapter)("the quick brown", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, adapter)(ids).logits
    assert float((after - before).abs().max()) > 1e-4


def test_the_adapter_brings_the_tokenizers_own_files_and_a_manifest(lora, model_dir):
    adapter = lora.run_dir / "adapter"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (adapter / name).read_bytes() == (model_dir / name).read_bytes()
    manifest = read_manifest(adapter)
    assert manifest["step"] == 3
    assert {"torch", "transformers", "peft", "accelerate"} <= manifest["versions"].keys()
    assert json.loads((adapter / "dcu_launch.json").read_text()) == {
        "base": str(model_dir), "seed": 42, "template": "chat", "end_ids": [0, 2], "method": "lora",
        "base_mark": mark_base(str(model_dir), 42),
    }  # fmt: skip


def test_the_adapters_readme_says_what_it_is(lora, model_dir):
    text = (lora.run_dir / "adapter" / "README.md").read_text()
    assert text.startswith(f"---\nbase_model: {model_dir}\nlibrary_name: peft\n---\n# run\n")
    assert f"base: `{model_dir}`, weights sha256 `{mark_base(str(model_dir), 42)['weights']}`" in text
    assert "- method: lora, rank 8, alpha 16\n" in text
    assert "rows.json`; " in text
    assert " rows to train on, " in text
    assert "- steps: 3 of 8 rows, seed 42\n" in text
    assert "[More Information Needed]" not in text
    assert "README.md" in read_manifest(lora.run_dir / "adapter")["files"]


def test_the_best_step_is_the_one_that_was_measured_best(lora):
    rows = lora.metrics
    assert "eval_loss" in rows[-1]
    assert (lora.run_dir / "checkpoints" / "best").read_text() == "step-00000003\n"


def test_one_rank_writes_checkpoints(lora):
    assert sum(output.count("checkpoint: ") for output in lora.outputs) == 1


@pytest.mark.parametrize("method", ["freeze", "full"])
def test_a_whole_model_loads_with_its_own_config(ranks, model_dir, rows_file, tmp_path, method):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ran = ranks.train(recipe(model_dir, rows_file, method=method, train={"max_steps": 2}), tmp_path / "run")
    result = ran.run_dir / "model"
    assert (result / "config.json").read_bytes() == (model_dir / "config.json").read_bytes()
    before, after = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict() for folder in (model_dir, result)
    )
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    frozen = {name for name in before if ".layers.1." not in name and ".layers.2." not in name}
    assert changed.isdisjoint(frozen) if method == "freeze" else len(changed) == len(before)
    assert AutoTokenizer.from_pretrained(result)("the")["input_ids"]


def test_the_demo_learns_on_two_ranks(ranks, tmp_path: Path):
    ran = ranks.train(load_recipe(None, []), tmp_path / "run", 2)
    assert len(ran.losses) == 20
    assert sum(ran.losses[-5:]) < 0.9 * sum(ran.losses[:5])
    assert (ran.run_dir / "adapter" / "adapter_model.safetensors").is_file()
