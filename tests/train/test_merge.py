"""``dcu-launch merge``: one model that says what base and adapter say; mistakes leave nothing behind."""

from __future__ import annotations

import json
import re
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
        stored = {weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    assert stored == {"BF16"}
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


#: what a user's own program does, on a machine that has never heard of us
FOREIGN = """
import json, sys
sys.modules["launcher"] = None  # any import of it fails
base, adapter, merged = sys.argv[1:]
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

one, two = AutoTokenizer.from_pretrained(adapter), AutoTokenizer.from_pretrained(merged)
question = [{"role": "user", "content": "the quick brown"}]
text = one.apply_chat_template(question, tokenize=False, add_generation_prompt=True)
ids = one(text, return_tensors="pt")["input_ids"]
with torch.no_grad():
    alone = AutoModelForCausalLM.from_pretrained(base)(ids).logits
    both = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)(ids).logits
    auto = AutoPeftModelForCausalLM.from_pretrained(adapter)(ids).logits
    model = AutoModelForCausalLM.from_pretrained(merged)
    whole = model(ids).logits
away = lambda a, b: float((a - b).abs().max())
print(json.dumps({
    "same_text": two.apply_chat_template(question, tokenize=False, add_generation_prompt=True) == text,
    "same_ids": two(text)["input_ids"] == ids[0].tolist(), "eos": [one.eos_token_id, two.eos_token_id],
    "end": GenerationConfig.from_pretrained(merged).eos_token_id, "learnt": away(both, alone),
    "auto": away(auto, both), "merged": away(whole, both), "dtype": str(model.dtype),
    "answer": model.generate(ids, max_new_tokens=4, do_sample=False).shape[1] > ids.shape[1],
}))
"""


def test_transformers_and_peft_load_it_where_nothing_of_ours_is(lora, ranks, model_dir, tmp_path):
    base, run = tmp_path / "base", tmp_path / "run"
    shutil.copytree(lora.run_dir, run)
    shutil.copytree(model_dir, base)
    (base / "generation_config.json").write_text(
        '{"eos_token_id": [2, 0], "temperature": 0.7, "do_sample": true}'
    )
    code, output = call(ranks, tmp_path / "1", run, "--base", base)
    assert code == 0, output
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN, base, run / "adapter", run / "merged"],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["same_text"], told["same_ids"], told["answer"]) == (True, True, True)
    assert told["eos"][0] == told["eos"][1]
    assert (told["end"], told["dtype"]) == ([2, 0], "torch.float32")
    assert told["auto"] == 0.0
    assert told["merged"] <= 1e-4 < told["learnt"]


def test_adapter_and_merged_hold_what_vllm_asks_for(lora, ranks, model_dir, tmp_path):
    """vLLM refuses adapters with biases, DoRA or whole modules, and knows LoRA tensors by their names."""
    from safetensors import safe_open

    adapter = lora.run_dir / "adapter"
    config = json.loads((adapter / "adapter_config.json").read_text())
    facts = {
        name: config.get(name) for name in ("peft_type", "task_type", "r", "bias", "base_model_name_or_path")
    }
    assert facts == {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "bias": "none", "base_model_name_or_path": str(model_dir),
    }  # fmt: skip
    assert (bool(config.get("use_dora")), config.get("modules_to_save")) == (False, None)
    assert set(config["target_modules"]) >= {"q_proj", "v_proj"}
    with safe_open(adapter / "adapter_model.safetensors", "pt") as weights:
        names = list(weights.keys())
    name = re.compile(r"base_model\.model\.model\.layers\.\d+\.(self_attn|mlp)\.\w+_proj\.lora_[AB]\.weight")
    assert names
    assert [other for other in names if not name.fullmatch(other)] == []

    code, output = call(ranks, tmp_path / "1", lora.run_dir, "--out", tmp_path / "merged", "--dtype", "bf16")
    assert code == 0, output
    base, merged = (
        json.loads((path / "config.json").read_text()) for path in (model_dir, tmp_path / "merged")
    )
    assert merged["architectures"] == ["Qwen2ForCausalLM"]
    of_dtype = {"dtype", "torch_dtype"}
    assert {merged[key] for key in of_dtype & merged.keys()} == {"bfloat16"}
    assert {key: merged[key] for key in merged.keys() - of_dtype} == {
        key: base[key] for key in base.keys() - of_dtype
    }
    with safe_open(tmp_path / "merged" / "model.safetensors", "pt") as weights:
        assert [name for name in weights.keys() if "lora" in name or "base_layer" in name] == []  # noqa: SIM118
    found = {path.name for path in (tmp_path / "merged").iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"} <= found
    assert not any(name.startswith("adapter") for name in found)


def test_code_that_a_model_brings_goes_with_its_tokenizer(tmp_path):
    from launcher.train.model import copy_tokenizer

    base, target = tmp_path / "base", tmp_path / "target"
    base.mkdir()
    target.mkdir()
    for file in (
        "tokenization_x.py",
        "modeling_x.py",
        "x.tiktoken",
        "tokenizer.model",
        "model.safetensors",
        "README.md",
    ):
        (base / file).write_text(file)
    copy_tokenizer(str(base), None, target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {
        name: name for name in ("tokenization_x.py", "modeling_x.py", "x.tiktoken", "tokenizer.model")
    }
