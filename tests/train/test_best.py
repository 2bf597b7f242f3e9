"""The best checkpoint can be used as it lies there: an adapter like the result's, or tensors that are laid over the base."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.base.errors import ConfigError
from launcher.commands.generate import generate
from launcher.commands.merge import merge
from launcher.train import checkpoint
from launcher.train.source import find_source
from tests.train.tiny import Ran, Ranks, recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]

#: validation is lowest at step 2, whatever the model has learnt
LOSSES = """
import launcher.train.loop as loop
loop.evaluate = lambda setup, progress: {1: 3.0, 2: 1.0, 3: 2.0, 4: 2.5}[progress.step]
"""
ALPHA, R = 16, 8


@pytest.fixture(scope="module")
def ranks() -> Any:
    starter = Ranks(modules=("deepspeed",), variables={"DS_ACCELERATOR": "cpu"})
    yield starter
    starter.close()


@pytest.fixture(scope="module")
def trained(ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Four steps of two ranks, the second of which is the best, by method and ZeRO's stage (0: DDP)."""
    ran: dict[tuple[str, int], Ran] = {}

    def train(method: str, stage: int = 0) -> Ran:
        if (method, stage) not in ran:
            config = recipe(
                model_dir, rows_file, method=method, engine="deepspeed" if stage else "ddp",
                deepspeed={"zero_stage": max(stage, 1)}, data={"eval_fraction": 0.2},
                lora={"r": R, "alpha": ALPHA, "modules_to_save": ["lm_head"] if method == "lora" else []},
                freeze={"last_layers": 1}, train={"max_steps": 4, "eval_every": 1}, checkpoint={"keep": 1},
            )  # fmt: skip
            folder = tmp_path_factory.mktemp("best") / "run"
            ran[method, stage] = ranks.train(config, folder, 2, code=LOSSES)
        return ran[method, stage]

    return train


@pytest.fixture
def call(ranks: Ranks, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs what a verb runs, in a process that has torch already."""
    numbers = itertools.count()

    def run(command: Any, *words: object) -> tuple[int, str]:
        context = command.make_context(command.name, [str(word) for word in words])
        options = {name: value for name, value in context.params.items() if name != "python"}
        folder = tmp_path / f"called-{next(numbers)}"
        return ranks.call(f"launcher.train.{command.name}", [json.dumps(options)], folder)

    return run


def tensors(file: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(file))


def built_by_hand(model_dir: Path, learnt: dict[str, Any]) -> Any:
    """The base with what a checkpoint's trainable.safetensors says, without peft and without our loading."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_dir, torch_dtype=torch.float32)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in learnt.items():
            if ".lora_A." in name:
                up = learnt[name.replace(".lora_A.", ".lora_B.")]
                own[name.replace(".lora_A.default", "")].add_(ALPHA / R * up @ tensor)
            elif ".lora_B." not in name:
                own[name.replace(".modules_to_save.default", "")].copy_(tensor)
    return model.eval()


def away(one: Any, other: Any) -> float:
    import torch

    ids = torch.arange(3, 40).unsqueeze(0)
    with torch.no_grad():
        return float((one(input_ids=ids).logits - other(input_ids=ids).logits).abs().max())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_best_checkpoint_holds_the_adapter_of_its_step(trained, stage):
    import torch

    run_dir = trained("lora", stage).run_dir
    assert checkpoint.read_pointer(run_dir, "best") == "step-00000002"
    folder = run_dir / "checkpoints" / "step-00000002"
    listed = checkpoint.read_manifest(folder)["files"]
    assert {"adapter/adapter_model.safetensors", "adapter/manifest.json"} <= listed.keys()
    learnt = tensors(folder / "trainable.safetensors")
    saved = tensors(folder / "adapter" / "adapter_model.safetensors")
    names = {
        f"base_model.model.{name.replace('.modules_to_save.default', '').replace('.default', '')}": name
        for name in learnt
    }
    assert saved.keys() == names.keys()
    assert all(torch.equal(saved[name], learnt[own]) for name, own in names.items())
    last = run_dir / "adapter"
    files = {path.name for path in last.iterdir()}
    assert {path.name for path in (folder / "adapter").iterdir()} == files
    for name in files - {"adapter_model.safetensors", "manifest.json", "README.md"}:
        assert (folder / "adapter" / name).read_bytes() == (last / name).read_bytes(), name
    assert (checkpoint.read_manifest(folder / "adapter")["step"], checkpoint.read_manifest(last)["step"]) == (
        2,
        4,
    )
    assert "- steps: 2 of 8 rows" in (folder / "adapter" / "README.md").read_text()
    assert not (run_dir / "checkpoints" / "step-00000004" / "adapter").exists()
    assert [path.name for path in checkpoint.list_checkpoints(run_dir)] == ["step-00000004", "step-00000002"]


@pytest.mark.parametrize("method", ["lora", "freeze", "full"])
def test_what_is_loaded_is_the_base_with_the_best_steps_tensors(trained, model_dir, method):
    import torch

    from launcher.train.load import load_source

    run_dir = trained(method).run_dir
    folder = run_dir / "checkpoints" / "step-00000002"
    by_hand = built_by_hand(model_dir, tensors(folder / "trainable.safetensors"))
    for source in (find_source(str(run_dir), best=True), find_source(str(folder))):
        model, _ = load_source(source, torch.device("cpu"), "fp32")
        assert away(model, by_hand) < 1e-5
    last, _ = load_source(find_source(str(run_dir)), torch.device("cpu"), "fp32")
    assert away(last, by_hand) > 1e-3


@pytest.mark.parametrize("method", ["lora", "freeze"])
def test_merge_writes_the_best_as_one_model_and_generate_answers_from_it(
    trained, call, model_dir, tmp_path, method
):
    import torch
    from transformers import AutoModelForCausalLM

    run = tmp_path / "run"
    shutil.copytree(trained(method).run_dir, run)
    code, output = call(merge, run, "--best", "--dtype", "fp32")
    assert code == 0, output
    target = run / "merged-step-00000002"
    assert output.splitlines()[0] == str(target)
    folder = run / "checkpoints" / "step-00000002"
    by_hand = built_by_hand(model_dir, tensors(folder / "trainable.safetensors"))
    assert away(AutoModelForCausalLM.from_pretrained(target, torch_dtype=torch.float32), by_hand) < 1e-5
    told = json.loads((target / "dcu_launch.json").read_text())["merged"]
    name = "adapter_model.safetensors" if method == "lora" else "trainable.safetensors"
    part = folder / "adapter" if method == "lora" else folder
    assert told["adapter_sha256"][name] == checkpoint.hash_file(part / name)
    words = ("-p", "Say 9 words from 2", "--json", "--max-new-tokens", "6", "--precision", "fp32", "--cpu")
    answers = [call(generate, *what, *words) for what in ((run, "--best"), (folder,), (target,))]
    assert answers[0][0] == 0, answers[0][1]
    assert answers[1] == answers[0]
    assert answers[2] == answers[0]
    assert "is there already" in call(merge, folder)[1]


def test_what_cannot_be_loaded_is_named(trained, model_dir, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained("lora").run_dir, run)
    with pytest.raises(ConfigError, match=r"step-00000004: holds no adapter/ and no dcu_launch.json"):
        find_source(str(run / "checkpoints" / "step-00000004"))
    shutil.rmtree(run / "checkpoints" / "step-00000002" / "adapter")  # as older versions wrote it
    with pytest.raises(ConfigError, match=r"step-00000002: holds no adapter/ .*older dcu-launch"):
        find_source(str(run), best=True)
    shutil.rmtree(run / "checkpoints" / "step-00000002")
    with pytest.raises(ConfigError, match="checkpoints/best names step-00000002, which is not there"):
        find_source(str(run), best=True)
    (run / "checkpoints" / "best").unlink()
    with pytest.raises(ConfigError, match="has no best checkpoint: none with an eval loss"):
        find_source(str(run), best=True)
    with pytest.raises(ConfigError, match=r"--best: .* is no run folder"):
        find_source(str(model_dir), best=True)


def test_a_base_that_tensors_do_not_fit_is_refused(trained, model_dir, tmp_path):
    from transformers import AutoModelForCausalLM

    from launcher.train.load import lay_over

    model = AutoModelForCausalLM.from_pretrained(model_dir)
    file = trained("lora").run_dir / "checkpoints" / "step-00000002" / "trainable.safetensors"
    with pytest.raises(ConfigError, match=r"does not fit onto its base: 25 of 25 tensors, "):
        lay_over(model, file)
    (tmp_path / "cut.safetensors").write_bytes(file.read_bytes()[:100])
    with pytest.raises(ConfigError, match=r"cut.safetensors: cannot be read: "):
        lay_over(model, tmp_path / "cut.safetensors")


def test_another_programs_model_in_a_folder_named_like_a_checkpoint_is_a_model(tmp_path):
    folder = tmp_path / "checkpoints" / "step-100"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    source = find_source(str(folder))
    assert (source.base, source.adapter, source.learnt) == (str(folder), None, None)


def test_another_programs_adapter_in_a_folder_named_like_a_checkpoint_is_an_adapter(tmp_path):
    folder = tmp_path / "checkpoints" / "step-100"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "demo"}')
    source = find_source(str(folder))
    assert (source.base, source.adapter, source.learnt) == ("demo", folder, None)
