"""``dcu-launch estimate`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.cli import main
from tests.report.test_estimate import MODELS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODELS["Qwen2.5-7B"][0]))
    return tmp_path


def test_the_table(folder, capsys):
    assert main(["estimate", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7,615,616,512 parameters; adapters of 5,046,272 learn (0.07%)"
    assert lines[1] == "method lora, bf16, 1 card, DDP, 8192 tokens at once"
    assert lines[3].split() == ["weights", "14.20", "GiB"]
    assert "  16 GB: does not fit, however few tokens at once" in lines
    assert any(line.startswith("  64 GB: fits; train.max_tokens_per_card=") for line in lines)
    assert "train.gradient_checkpointing=true" in lines[-1]


def test_figures_add_up_in_json(folder, capsys):
    words = ["--method", "full", "--zero", "3", "--cards", "8", "--max-tokens", "2048", "--json"]
    assert main(["estimate", *words, str(folder / "config.json"), "train.gradient_checkpointing=true"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["method"], found["zero_stage"], found["cards"], found["tokens"]) == ("full", 3, 8, 2048)
    parts = ("weights", "casts", "gradients", "optimizer", "activations", "logits")
    assert 0 <= found["allocated"] - sum(found[name] for name in parts) <= 1 << 27
    assert found["total"] == found["allocated"] + found["reserve"]
    assert found["cards_gb"]["32"]["fits"]
    assert not found["cards_gb"]["16"]["fits"]


def test_a_recipe_brings_its_settings(folder, capsys):
    recipe = folder / "mine.yaml"
    recipe.write_text(
        f"model: {{path: {folder}}}\ndata: {{path: rows.json}}\nmethod: freeze\ntrain: {{precision: fp16}}\n"
    )
    assert main(["estimate", "--recipe", str(recipe), "freeze.last_layers=1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "7,615,616,512 parameters, of which 233,057,792 learn (3.06%)"
    assert lines[1].startswith("method freeze, fp16, 1 card, DDP, ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "estimate needs a model folder"),
        (["{}/empty"], "has no config.json"),
        (["{}/missing"], "there is no "),
        (["{}/other.json"], "model_type 'mamba' is not known to estimate"),
        (["{}/bad.json"], "cannot be read as JSON"),
        (["{}", "{}"], "one MODEL is expected"),
        (["{}", "lora.x=1"], "lora.x"),
        (["{}", "--max-tokens", "64"], "expected at least data.max_length (1024); found 64"),
        (["{}", "--zero", "4"], "4 is not in the range"),
        (["{}", "lora.targets=[nothing]"], "'nothing' is no layer"),
    ],
)
def test_mistakes_end_in_2(folder, capsys, words, text):
    (folder / "empty").mkdir()
    (folder / "other.json").write_text('{"model_type": "mamba"}')
    (folder / "bad.json").write_text("{")
    assert main(["estimate", *(word.replace("{}", str(folder)) for word in words)]) == 2
    assert text in capsys.readouterr().err
