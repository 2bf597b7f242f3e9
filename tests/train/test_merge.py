"""``dcu-launch merge``: one model that says what base and adapter say; mistakes leave nothing behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.commands.merge import merge

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]
DCU_LAUNCH = Path(sys.executable).parent / "dcu-launch"
QUESTIONS = [f"Say {number} words from {number % 7}" for number in range(20)]


def call(ranks, folder: Path, *words: object) -> tuple[int, str]:
    """Runs what the verb runs, in a process that has torch already."""
    context = merge.make_context("merge", [str(word) for word in words])
    options = {name: value for name, value in context.params.items() if name != "python"}
    return ranks.call("launcher.train.merge", [json.dumps(options)], folder)


def test_the_merged_model_says_what_base_and_adapter_say(lora, ranks, model_dir, tmp_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    code, output = call(ranks, tmp_path / "1", lora.run_dir, "--out", tmp_path / "merged", "--dtype", "fp32")
    assert code == 0, output
    assert output.splitlines()[0] == str(tmp_path / "merged"), output
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    base = AutoModelForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float32)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", torch_dtype=torch.float32)
    away, learnt = 0.0, 0.0
    with torch.no_grad():
        ids = [tokenizer(text, return_tensors="pt")["input_ids"] for text in QUESTIONS]
        alone = [base(input_ids=question).logits for question in ids]
        both = PeftModel.from_pretrained(base, lora.run_dir / "adapter").eval()
        for question, before in zip(ids, alone, strict=True):
            expected = both(input_ids=question).logits
            away = max(away, float((merged(input_ids=question).logits - expected).abs().max()))
            learnt = max(learnt, float((expected - before).abs().max()))
    assert away <= 1e-4 < learnt
    card = json.loads((tmp_path / "merged" / "dcu_launch.json").read_text())
    told = card["merged"]
    assert told["base"] == str(model_dir)
    assert (
        told["base_mark"]
        == json.loads((lora.run_dir / "adapter" / "dcu_launch.json").read_text())["base_mark"]
    )
    assert 0 <= told["difference"] <= 1e-4
    assert len(told["adapter_sha256"]["adapter_model.safetensors"]) == 64
    manifest = json.loads((tmp_path / "merged" / "manifest.json").read_text())
    assert "model.safetensors" in manifest["files"]
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config.get("dtype", config.get("torch_dtype")) == "float32"


def test_it_is_stored_as_its_base_and_can_be_asked(lora, ranks, tmp_path):
    from safetensors import safe_open

    run = tmp_path / "run"
    shutil.copytree(lora.run_dir, run)
    code, output = call(ranks, tmp_path / "1", run, "--dtype", "bf16")
    assert code == 0, output
    with safe_open(run / "merged" / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118 == {"BF16"}
    options = {
        "what": str(run / "merged"),
        "prompts": ["a"],
        "as_json": True,
        "max_new_tokens": 3,
        "precision": "fp32",
    }
    code, output = ranks.call("launcher.train.generate", [json.dumps(options)], tmp_path / "2")
    assert (code, json.loads(output)["prompt"]) == (0, "a")
    code, output = call(ranks, tmp_path / "3", run)
    assert (code, "is there already, and is not overwritten" in output) == (2, True)


def test_another_base_and_what_is_no_adapter_are_refused(lora, ranks, model_dir, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    other = tmp_path / "other"
    shutil.copytree(model_dir, other)
    model = AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.5)
    model.save_pretrained(other)
    code, output = call(ranks, tmp_path / "1", lora.run_dir, "--base", other, "--out", tmp_path / "merged")
    assert code == 2
    assert "is another base than it was trained on: " in output
    assert "its weights are others" in output
    code, output = call(ranks, tmp_path / "2", model_dir, "--out", tmp_path / "merged")
    assert (code, "a whole model, there is no adapter to merge" in output) == (2, True)
    assert not (tmp_path / "merged").exists()
    done = subprocess.run(
        [DCU_LAUNCH, "merge", tmp_path / "none"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "there is no such run folder, adapter or model" in done.stderr
    assert "Traceback" not in done.stderr
