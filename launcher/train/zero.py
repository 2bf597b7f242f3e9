"""Recipe -> DeepSpeed's ZeRO engine, and its shards <-> whole named tensors. Runs in every rank.

ZeRO keeps the float32 weights and AdamW's moments in flat pieces, one a rank. Checkpoints hold whole tensors by name
as under DDP, gathered one parameter at a time: no pickle is written or read, and a run goes on with another number of
ranks, another stage, or under DDP. Everything here that gathers is a collective: all ranks call it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError
from launcher.train.world import World, broadcast

_MOMENTS = ("exp_avg", "exp_avg_sq")
#: sections of a DeepSpeed file that the recipe itself decides
_OURS = ("optimizer", "scheduler", "amp", "curriculum_learning", "data_efficiency", "compression_training")


def check_deepspeed(recipe: Recipe, world: World, precision: str, has_experts: bool) -> dict[str, Any]:
    """The settings that DeepSpeed gets; raises ConfigError for what cannot be, with all problems at once."""
    import importlib.util

    if importlib.util.find_spec("deepspeed") is None:
        raise ConfigError(
            "engine: deepspeed is not installed on this node",
            "pip install --no-build-isolation deepspeed, or engine=ddp",
        )
    problems = []
    if not world.has_group:
        problems.append(
            "engine: deepspeed needs torchrun's variables, for one rank too: start with dcu-launch"
        )
    if recipe.train.on_nonfinite == "skip" and precision == "fp32":
        problems.append(
            "train.on_nonfinite: DeepSpeed cannot leave out a step in fp32; expected stop, found skip"
        )
    if has_experts and recipe.deepspeed.zero_stage == 3:
        problems.append("deepspeed.zero_stage: 3 with a model of experts is not supported: expected 1 or 2")
    given = _read_file(recipe.deepspeed.config, precision, problems) if recipe.deepspeed.config else {}
    if problems:
        raise ConfigError("\n".join(problems))
    return make_zero_config(recipe, precision, given)


def _read_file(path: str, precision: str, problems: list[str]) -> dict[str, Any]:
    """A DeepSpeed JSON file, checked against what the recipe decides."""
    key = f"deepspeed.config: {path}"
    try:
        values = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: {error}", "every node must see the file under this path") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{key}: expected a JSON object")
    problems += [
        f"{key}: {name}: the recipe decides this, take the section out" for name in _OURS if name in values
    ]
    zero = values.get("zero_optimization")
    if not isinstance(zero, dict) or zero.get("stage") not in (1, 2, 3):
        problems.append(f"{key}: zero_optimization.stage: expected 1, 2 or 3")
        return values
    for name in ("offload_optimizer", "offload_param"):
        if (zero.get(name) or {}).get("device", "none") != "none":
            problems.append(f"{key}: zero_optimization.{name}: offloading is not supported")
    for name, word in (("bf16", "bf16"), ("fp16", "fp16")):
        asked = (values.get(name) or {}).get("enabled", "auto")
        if asked != "auto" and bool(asked) != (precision == word):
            problems.append(f"{key}: {name}.enabled is {asked}, but this run computes in {precision}")
    return values


def make_zero_config(recipe: Recipe, precision: str, given: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's settings: those of the file, if there is one, and over them what the loop decides.

    The file's batch sizes and accumulation do not count: the loop says itself which backward pass is a step's last.
    """
    zero = {"stage": recipe.deepspeed.zero_stage, **(given.get("zero_optimization") or {})}
    zero = {name: value for name, value in zero.items() if value != "auto"}
    config = {
        **given,
        "zero_optimization": zero,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": recipe.train.max_grad_norm,
    }
    config.pop("train_batch_size", None)
    for name in ("bf16", "fp16"):
        section = {key: value for key, value in (given.get(name) or {}).items() if value != "auto"}
        config[name] = {**section, "enabled": precision == name}
    if precision == "bf16":
        config["bf16"]["check_grad_overflow"] = True  # a step whose gradient is not finite is left out
        if zero["stage"] > 1:
            config.setdefault("data_types", {"grad_accum_dtype": "fp32"})
    return config


def make_plugin(config: dict[str, Any], on_card: bool) -> Any:
    """Accelerate's plugin for these settings."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if on_card else "cpu")
    logging.disable(logging.INFO)  # DeepSpeed tells its whole configuration on each rank's stdout
    try:
        import deepspeed
        from accelerate import DeepSpeedPlugin
    finally:
        logging.disable(logging.NOTSET)
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not on_card:
        # its collectives for ranks that share memory would be compiled for a minute, at each node's first run
        getattr(deepspeed.ops, "__compatible_ops__", {})["deepspeed_shm_comm"] = False
    # the model is read whole, and split by DeepSpeed afterwards
    return DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=False)


def find_silent(trainable: dict[str, Any]) -> list[str]:
    """Names of what should learn but got no gradient; between the backward pass and the step."""
    from deepspeed.utils import safe_get_full_grad

    silent = []
    for name, parameter in trainable.items():
        gradient = safe_get_full_grad(parameter)
        # the first matrix of an adapter has none as long as the second is zero
        is_due = "lora_A" not in name and (parameter_ndim(parameter) > 1 or "lora_B" in name)
        if gradient is None or (is_due and not bool(gradient.any())):
            silent.append(name)
    return silent


def parameter_ndim(parameter: Any) -> int:
    """Dimensions of a parameter, split or not."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def gather_trainable(trainable: dict[str, Any]) -> dict[str, Any]:
    """What learns as whole float32 tensors on the CPU of rank 0; empty on the others."""
    from deepspeed.utils import safe_get_full_fp32_param

    return dict(_keep(_each(trainable, lambda p: safe_get_full_fp32_param(p).view(_shape(p)))))


def gather_moments(engine: Any, trainable: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """AdamW's moments as ``name|exp_avg`` tensors on the CPU of rank 0, and how many steps they have seen."""
    from deepspeed.utils import safe_get_full_optimizer_state

    steps = _count_steps(engine)
    if steps:
        _link_states(engine.optimizer)
    tensors: dict[str, Any] = {}
    for moment in _MOMENTS if steps else ():
        found = _each(trainable, lambda p, m=moment: safe_get_full_optimizer_state(p, m).view(_shape(p)))
        tensors.update((f"{name}|{moment}", tensor) for name, tensor in _keep(found))
    return tensors, steps


def gather_whole(causal: Any) -> dict[str, Any]:
    """The model's state dict as whole tensors on the CPU of rank 0, what learns in float32; empty on the others."""
    learnt = gather_trainable({name: p for name, p in causal.named_parameters() if p.requires_grad})
    names = {id(p): name for name, p in causal.named_parameters() if p.requires_grad}
    frozen: dict[int, Any] = {}
    whole: dict[str, Any] = {}
    for key, value in causal.state_dict(keep_vars=True).items():
        if id(value) in names:
            whole.update({key: learnt[names[id(value)]]} if learnt else {})
            continue
        if id(value) not in frozen:
            frozen[id(value)] = _gather_frozen(value)
        if _is_main():
            whole[key] = frozen[id(value)]
    return whole


def _gather_frozen(value: Any) -> Any:
    if not hasattr(value, "ds_id"):
        return value.detach().cpu() if _is_main() else None
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([value]):
        return value.detach().cpu().clone() if _is_main() else None


def restore_zero(
    engine: Any,
    trainable: dict[str, Any],
    weights: dict[str, Any] | None,
    moments: dict[str, Any] | None,
    steps: int,
) -> None:
    """Give every rank's piece the weights and moments that rank 0 read; the others pass None for both."""
    import torch

    if steps:
        for flat in _flat_parameters(engine):
            zeros = {moment: torch.zeros_like(flat) for moment in _MOMENTS}
            engine.optimizer.optimizer.state[flat] = {"step": torch.tensor(float(steps)), **zeros}
        _link_states(engine.optimizer)
    for name, parameter in trainable.items():
        value = _share(weights, name, parameter, engine.device)
        _set_piece(parameter, value, None)
        _set_computing(parameter, value)
        for moment in _MOMENTS if steps else ():
            _set_piece(parameter, _share(moments, f"{name}|{moment}", parameter, engine.device), moment)


def _link_states(optimizer: Any) -> None:
    """Let parameters of ZeRO-1 and 2 find their moments.

    DeepSpeed does it itself, but after the first group's first step alone: those of later groups find none.
    """
    if hasattr(optimizer, "_lazy_init_hp_params_optimizer_state"):
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()


def _set_piece(parameter: Any, value: Any, moment: str | None) -> None:
    """Put this rank's part of a whole tensor into its float32 piece: the weight, or one of its moments."""
    import torch
    from deepspeed import utils

    if not hasattr(parameter, "ds_id"):
        if moment is None:
            utils.safe_set_full_fp32_param(parameter, value)
        else:
            utils.safe_set_full_optimizer_state(parameter, value, moment)
        return
    # ZeRO-3 cuts into equal pieces, of which the last may reach past the tensor's end: its own setter fails there
    own = (
        utils.safe_get_local_fp32_param(parameter)
        if moment is None
        else utils.safe_get_local_optimizer_state(parameter, moment)
    )
    start = own.numel() * torch.distributed.get_rank()
    part = value.flatten()[start : start + own.numel()]
    piece = torch.nn.functional.pad(part, (0, own.numel() - part.numel()))
    if moment is None:
        utils.safe_set_local_fp32_param(parameter, piece)
    else:
        utils.safe_set_local_optimizer_state(parameter, piece, moment)


def _set_computing(parameter: Any, value: Any) -> None:
    """The copy that computes, in its own format, beside the float32 one."""
    if not hasattr(parameter, "ds_id"):
        parameter.data.copy_(value)
        return
    from deepspeed.runtime.zero import GatheredParameters

    with GatheredParameters([parameter], modifier_rank=0):
        if _is_main():
            parameter.data.copy_(value)


def _share(found: dict[str, Any] | None, name: str, parameter: Any, device: Any) -> Any:
    import torch

    value = torch.empty(_shape(parameter), dtype=torch.float32, device=device)
    if found is not None:
        value.copy_(found[name])
    broadcast(value)
    return value


def _flat_parameters(engine: Any) -> list[Any]:
    optimizer = engine.optimizer
    names = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
    return next(list(getattr(optimizer, name)) for name in names if hasattr(optimizer, name))


def _count_steps(engine: Any) -> int:
    states = [engine.optimizer.optimizer.state.get(flat) for flat in _flat_parameters(engine)]
    return max((int(state["step"]) for state in states if state), default=0)


def _each(parameters: dict[str, Any], gather: Any) -> Iterator[tuple[str, Any]]:
    for name, parameter in parameters.items():
        yield name, gather(parameter)


def _keep(found: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Take part in gathering all, keep on rank 0 alone."""
    for name, tensor in found:
        if _is_main():
            yield name, tensor.detach().float().cpu().clone()


def _shape(parameter: Any) -> Any:
    return getattr(parameter, "ds_shape", parameter.shape)


def _is_main() -> bool:
    import torch

    return bool(torch.distributed.get_rank() == 0)
