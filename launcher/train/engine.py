"""Objective + optimizer -> data parallel ones, by Accelerate; and the guards that they really are. In every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher.base.config import Recipe
from launcher.base.learning_rate import pick_learning_rate
from launcher.train.features import adamw_options
from launcher.train.world import World


@dataclass(frozen=True, slots=True)
class Engine:
    """What the loop steps with.

    Attributes:
        model: the objective inside the engine's wrapper.
        optimizer: Accelerate's wrapper of it; ``raw_optimizer`` is torch's own.
    """

    accelerator: Any
    model: Any
    optimizer: Any
    raw_optimizer: Any


def make_accelerator(world: World, device: Any, precision: str, has_experts: bool) -> Any:
    """An Accelerator that knows of all ranks."""
    from accelerate import Accelerator, DistributedDataParallelKwargs, PartialState

    if device.type == "cpu":
        # With torchrun's variables alone Accelerate 1.15 says one process on every rank of a CPU run, and N copies
        # would train apart without a word.
        PartialState(cpu=True)
    kwargs = DistributedDataParallelKwargs(
        broadcast_buffers=False,  # nothing here has buffers that learn; an evaluation must not wait for others
        gradient_as_bucket_view=True,
        find_unused_parameters=has_experts,  # an expert that no token chose has no gradient
    )
    mixed = "no" if precision == "fp32" else precision
    accelerator = Accelerator(mixed_precision=mixed, kwargs_handlers=[kwargs])
    check_accelerator(accelerator, world)
    return accelerator


def make_optimizer(recipe: Recipe, causal: Any, device: Any) -> Any:
    """AdamW over what learns; weight decay spares biases and norms."""
    import torch

    trained = [p for p in causal.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.train.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=pick_learning_rate(recipe), **adamw_options(device)
    )


def prepare(accelerator: Any, world: World, objective: Any, optimizer: Any) -> Engine:
    """Hand objective and optimizer to the engine and check what came back."""
    model, wrapped = accelerator.prepare(objective, optimizer)
    check_accelerator(accelerator, world)
    if world.size > 1 and type(model).__name__ not in ("DistributedDataParallel", "DeepSpeedEngine"):
        raise RuntimeError(
            f"{world.size} ranks, but the engine made a {type(model).__name__}: copies would train apart"
        )
    return Engine(accelerator, model, wrapped, optimizer)


def check_accelerator(accelerator: Any, world: World) -> None:
    """Raise RuntimeError unless Accelerate, torch.distributed and the launcher's variables name the same world."""
    import torch

    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    seen = {
        "Accelerate": (accelerator.process_index, accelerator.num_processes),
        "torch.distributed": (torch.distributed.get_rank(), torch.distributed.get_world_size())
        if group
        else (0, 1),
        "RANK and WORLD_SIZE": (world.rank, world.size),
    }
    if len(set(seen.values())) > 1 or accelerator.is_main_process != world.is_main:
        places = "; ".join(f"{who} says rank {rank} of {size}" for who, (rank, size) in seen.items())
        raise RuntimeError(f"the ranks would train apart: {places}")
