"""DeepSpeed's ZeRO trains as DDP does, whatever is split; its checkpoints and results are whole tensors."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.base.config import from_dict
from launcher.base.errors import ConfigError
from launcher.train.world import World
from launcher.train.zero import check_deepspeed, make_zero_config
from tests.train.tiny import Ran, Ranks, recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]

METHODS: dict[str, dict[str, Any]] = {
    "lora": {"method": "lora"},
    "freeze": {"method": "freeze", "freeze": {"last_layers": 1}},
    "full": {"method": "full"},
}
#: several micro-batches a step, of unlike counts over ranks: one of them runs an empty one
KEYS = {
    "max_steps": 4, "global_batch_size": 10, "max_tokens_per_card": 140, "scheduler": "constant", "warmup_ratio": 0.0,
}  # fmt: skip
#: every rank says in its output what Accelerate made of it
SPY = """
import launcher.train.job as job
def spied(*arguments, prepare=job.prepare):
    engine = prepare(*arguments)
    a = engine.accelerator
    print("spy", type(engine.model).__name__, a.distributed_type.name, a.num_processes, a.is_main_process,
          engine.model.zero_optimization_stage(), flush=True)
    return engine
job.prepare = spied
"""


def keys(model_dir: Path, rows_file: Path, stage: int, method: str, **train: Any) -> dict[str, Any]:
    return recipe(
        model_dir, rows_file, engine="deepspeed" if stage else "ddp", deepspeed={"zero_stage": max(stage, 1)},
        train={**KEYS, **train}, data={"max_length": 140}, **METHODS[method],
    )  # fmt: skip


def tensors(ran: Ran, step: int, name: str = "trainable") -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(ran.run_dir / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors"))


def assert_near(one: Ran, other: Ran, step: int) -> None:
    assert other.losses == pytest.approx(one.losses, rel=1e-4)
    for name in ("trainable", "optimizer"):
        mine, theirs = tensors(one, step, name), tensors(other, step, name)
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            assert theirs[key].shape == tensor.shape
            assert float((theirs[key] - tensor).abs().max()) < 1e-5, key


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Starts ranks that need not import DeepSpeed each."""
    starter = Ranks(modules=("deepspeed",), variables={"DS_ACCELERATOR": "cpu"})
    yield starter
    starter.close()


@pytest.fixture(scope="module")
def unbroken(ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What four steps of two ranks come to, by method and stage (0: DDP); each is trained once."""
    ran: dict[tuple[str, int], Ran] = {}

    def train(method: str, stage: int) -> Ran:
        if (method, stage) not in ran:
            folder = tmp_path_factory.mktemp("unbroken") / "run"
            config, code = keys(model_dir, rows_file, stage, method), SPY if stage else ""
            ran[method, stage] = ranks.train(config, folder, 2, code=code)
        return ran[method, stage]

    return train


@pytest.fixture(scope="module")
def by_ddp(unbroken: Any) -> Any:
    """What DDP comes to, by method."""
    return lambda method: unbroken(method, 0)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_every_stage_trains_as_ddp_does(by_ddp, unbroken, method, stage):
    ran = unbroken(method, stage)
    for rank, output in enumerate(ran.outputs):
        assert f"spy DeepSpeedEngine DEEPSPEED 2 {rank == 0} {stage}" in output
    assert_near(by_ddp(method), ran, 4)
    assert [row["grad_norm"] for row in ran.metrics] == pytest.approx(
        [row["grad_norm"] for row in by_ddp(method).metrics], rel=1e-3
    )


#: one rank is asked to end while it computes a step
ASKED = """
import os, signal, launcher.train.loop as loop
def run_step(setup, progress, run_step=loop.run_step):
    if (progress.step + 1, os.environ["RANK"]) == (STEP, "RANK"):
        os.kill(os.getpid(), signal.SIGTERM)
    return run_step(setup, progress)
loop.run_step = run_step
"""


@pytest.mark.parametrize("turn", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 6))])
@pytest.mark.parametrize(
    ("method", "stage"), [("lora", 0), ("freeze", 0), ("lora", 2), ("freeze", 2), ("lora", 3)]
)
def test_a_run_that_is_interrupted_at_a_random_step_goes_on_as_if_unbroken(
    unbroken, ranks, model_dir, rows_file, tmp_path, method, stage, turn
):
    step, rank = random.randint(1, 3), random.randint(0, 1)
    config, folder = keys(model_dir, rows_file, stage, method), tmp_path / "run"
    code = ASKED.replace("STEP", str(step)).replace('"RANK")', f'"{rank}")')
    broken = ranks.end(config, folder, 2, code=code)
    assert (broken.codes, broken.metrics[-1]["step"]) == ([143, 143], step), f"asked by way of rank {rank}"
    whole, ran = unbroken(method, stage), ranks.train(config, folder, 2)
    assert f"goes on after step {step}" in ran.outputs[0]
    assert ran.losses == whole.losses
    for name in ("trainable", "optimizer"):
        mine, theirs = tensors(whole, 4, name), tensors(ran, 4, name)
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            assert tensor.equal(theirs[key]), key


def test_a_run_goes_on_with_other_ranks_stages_and_under_ddp(by_ddp, ranks, model_dir, rows_file, tmp_path):
    folder = tmp_path / "run"
    ranks.train(keys(model_dir, rows_file, 3, "lora", max_steps=1), folder, 3)
    ranks.train(keys(model_dir, rows_file, 1, "lora", max_steps=2), folder, 2)
    ranks.train(keys(model_dir, rows_file, 0, "lora", max_steps=3), folder, 2)
    ran = ranks.train(keys(model_dir, rows_file, 2, "lora"), folder, 1)
    assert_near(by_ddp("lora"), ran, 4)


def test_the_adapter_of_zero_3_is_whole_and_loads_with_peft_alone(
    by_ddp, ranks, model_dir, rows_file, tmp_path
):
    config = keys(model_dir, rows_file, 3, "lora")
    config["lora"]["modules_to_save"] = ["lm_head"]
    ran = ranks.train(config, tmp_path / "run", 2)
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    adapter = load_file(ran.run_dir / "adapter" / "adapter_model.safetensors")
    learnt = tensors(ran, 4)
    assert len(adapter) == len(learnt) == 3 * 4 * 2 + 1
    assert all(tensor.numel() > 0 for tensor in adapter.values())
    assert adapter["base_model.model.lm_head.weight"].shape == (320, 64)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(model_dir), ran.run_dir / "adapter"
    )
    loaded = {name.removeprefix("base_model.model."): p for name, p in model.named_parameters()}
    for name, tensor in learnt.items():
        assert loaded[name].equal(tensor), name


def test_the_model_of_zero_3_is_whole(by_ddp, unbroken):
    from safetensors.torch import load_file

    model = load_file(unbroken("freeze", 3).run_dir / "model" / "model.safetensors")
    expected = load_file(by_ddp("freeze").run_dir / "model" / "model.safetensors")
    assert model.keys() == expected.keys()
    for name, tensor in expected.items():
        assert float((model[name] - tensor).abs().max()) < 1e-5, name


def test_a_file_of_deepspeeds_settings_is_used(by_ddp, ranks, model_dir, rows_file, tmp_path):
    file = tmp_path / "zero.json"
    file.write_text(
        json.dumps(
            {
                "train_batch_size": "auto", "gradient_accumulation_steps": "auto", "bf16": {"enabled": "auto"},
                "zero_optimization": {"stage": 3, "overlap_comm": False, "reduce_bucket_size": 5000},
            }
        )
    )  # fmt: skip
    config = keys(model_dir, rows_file, 2, "lora")
    config["deepspeed"]["config"] = str(file)
    ran = ranks.train(config, tmp_path / "run", 2, code=SPY)
    assert "spy DeepSpeedEngine DEEPSPEED 2 True 3" in ran.outputs[0]
    assert_near(by_ddp("lora"), ran, 4)


def test_evaluation_and_best(ranks, model_dir, rows_file, tmp_path):
    config = keys(model_dir, rows_file, 3, "lora", eval_every=2)
    config["data"]["eval_fraction"] = 0.2
    ran = ranks.train(config, tmp_path / "run", 2)
    assert [("eval_loss" in row) for row in ran.metrics] == [False, True, False, True]
    assert ran.metrics[3]["eval_loss"] < ran.metrics[1]["eval_loss"]


def test_a_number_that_is_not_finite_ends_the_run(ranks, model_dir, rows_file, tmp_path):
    config = keys(model_dir, rows_file, 2, "lora")
    ran = ranks.end(config, tmp_path / "run", 2, code=NAN)
    assert ran.codes == [1, 1]
    assert "step 2: the loss of rank 1 is nan" in ran.outputs[0]


NAN = """
import os, torch
import launcher.train.loss as loss
seen = [0]
def spoilt(self, batch, forward=loss.Objective.forward):
    seen[0] += 1
    value = forward(self, batch)
    return value * float("nan") if os.environ["RANK"] == "1" and spoil[0] == 2 else value
spoil = [0]
import launcher.train.loop as loop
def run_step(setup, progress, run_step=loop.run_step):
    spoil[0] = progress.step + 1
    return run_step(setup, progress)
loop.run_step = run_step
loss.Objective.forward = spoilt
"""


def settings(given: dict[str, Any], precision: str = "fp32", **train: Any) -> dict[str, Any]:
    values = recipe(Path("m"), Path("r"), engine="deepspeed", train=train)
    return make_zero_config(from_dict(values), precision, given)


def test_what_the_loop_decides_stands_over_the_file():
    config = settings(
        {"gradient_accumulation_steps": 8, "train_batch_size": 64, "wall_clock_breakdown": True}
    )
    assert config == {
        "wall_clock_breakdown": True, "zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1, "gradient_clipping": 1.0, "bf16": {"enabled": False},
        "fp16": {"enabled": False},
    }  # fmt: skip
    assert settings({}, "bf16")["data_types"] == {"grad_accum_dtype": "fp32"}
    assert settings({"fp16": {"enabled": "auto", "loss_scale": 0}}, "fp16")["fp16"] == {
        "enabled": True, "loss_scale": 0,
    }  # fmt: skip


def test_all_that_cannot_be_is_told_at_once(tmp_path):
    file = tmp_path / "zero.json"
    file.write_text(
        json.dumps(
            {
                "optimizer": {"type": "Adam"}, "scheduler": {}, "bf16": {"enabled": True},
                "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}},
            }
        )
    )  # fmt: skip
    values = recipe(
        Path("m"),
        Path("r"),
        engine="deepspeed",
        deepspeed={"config": str(file)},
        train={"on_nonfinite": "skip"},
    )
    with pytest.raises(ConfigError) as caught:
        check_deepspeed(from_dict(values), World(), "fp32", has_experts=False)
    assert caught.value.message.split("\n") == [
        "engine: deepspeed needs torchrun's variables, for one rank too: start with dcu-launch",
        "train.on_nonfinite: DeepSpeed cannot leave out a step in fp32; expected stop, found skip",
        f"deepspeed.config: {file}: optimizer: the recipe decides this, take the section out",
        f"deepspeed.config: {file}: scheduler: the recipe decides this, take the section out",
        f"deepspeed.config: {file}: zero_optimization.offload_param: offloading is not supported",
        f"deepspeed.config: {file}: bf16.enabled is True, but this run computes in fp32",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected a JSON object"),
        ("{}", "zero_optimization.stage: expected 1, 2 or 3"),
        ('{"zero_optimization": {"stage": 0}}', "zero_optimization.stage: expected 1, 2 or 3"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path, text, message):
    file = tmp_path / "zero.json"
    file.write_text(text)
    values = recipe(Path("m"), Path("r"), engine="deepspeed", deepspeed={"config": str(file)})
    with pytest.raises(ConfigError, match=message):
        check_deepspeed(from_dict(values), World(has_group=True), "fp32", has_experts=False)
