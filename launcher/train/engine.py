"""Objective + optimizer -> data parallel ones, by Accelerate; and the guards that they really are. In every rank.

Under DDP the loop steps torch's optimizer; under DeepSpeed its engine clips, steps and empties the gradients by itself.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import Any

from launcher.base.config import Recipe
from launcher.base.learning_rate import pick_learning_rate
from launcher.train import zero
from launcher.train.features import adamw_options
from launcher.train.world import World


@dataclass(frozen=True, slots=True)
class Engine:
    """What the loop steps with.

    Attributes:
        model: the objective inside the engine's wrapper.
        optimizer: Accelerate's wrapper of it; ``raw_optimizer`` is torch's own.
        is_zero: whether DeepSpeed keeps weights and moments in pieces; ``model`` is its engine then.
    """

    accelerator: Any
    model: Any
    optimizer: Any
    raw_optimizer: Any
    is_zero: bool = False

    def backward(self, loss: Any) -> None:
        """The backward pass of a micro-batch; with the step's last one gradients are summed over ranks."""
        if self.is_zero:
            self.model.backward(loss)
        else:
            self.accelerator.backward(loss)

    def begin_micro(self, is_last: bool) -> Any:
        """The context of a micro-batch's forward and backward pass."""
        if self.is_zero:
            self.model.set_gradient_accumulation_boundary(is_last)
            return contextlib.nullcontext()
        return contextlib.nullcontext() if is_last else self.accelerator.no_sync(self.model)

    @property
    def scales_loss(self) -> bool:
        """Whether a loss scaler is at work, which finds its scale by overflowing and leaves such steps out by itself."""
        if self.is_zero:
            return bool(self.model.fp16_enabled())
        return self.accelerator.scaler is not None

    def step(self, max_norm: float) -> tuple[float, bool]:
        """Clip, step and empty the gradients; their norm before, and whether the step was taken.

        Under DDP a step with a norm that is not finite is not taken unless a scaler decides that.
        """
        if self.is_zero:
            self.model.step()
            return float(self.model.get_global_grad_norm()), bool(self.model.was_step_applied())
        # from the optimizer: the model would be walked through, all its frozen parts too
        learnt = [p for group in self.raw_optimizer.param_groups for p in group["params"]]
        norm = float(self.accelerator.clip_grad_norm_(learnt, max_norm or math.inf))
        taken = math.isfinite(norm)
        if taken or self.scales_loss:
            self.optimizer.step()
            taken = not getattr(self.optimizer, "step_was_skipped", False)
        self.optimizer.zero_grad()
        return norm, taken

    def leave_out(self) -> None:
        """Empty the gradients without a step; under DeepSpeed its own check, which finds what is not finite, does that."""
        if self.is_zero:
            self.model.step()
            return
        if self.scales_loss:
            self.optimizer.step()
        self.optimizer.zero_grad()


def make_accelerator(
    world: World, device: Any, precision: str, has_experts: bool, zero_config: dict[str, Any] | None = None
) -> Any:
    """An Accelerator that knows of all ranks; with DeepSpeed's settings one that uses it."""
    plugin = zero.make_plugin(zero_config, device.type != "cpu") if zero_config else None
    from accelerate import Accelerator, DistributedDataParallelKwargs, DistributedType, PartialState

    if device.type == "cpu":
        # With torchrun's variables alone Accelerate 1.15 says one process on every rank of a CPU run, and N copies
        # would train apart without a word.
        state = PartialState(cpu=True)
        if plugin:
            # newer ones of Accelerate find this out by themselves; 0.33 would make plain DDP of it
            state.distributed_type = DistributedType.DEEPSPEED
    kwargs = DistributedDataParallelKwargs(
        broadcast_buffers=False,  # nothing here has buffers that learn; an evaluation must not wait for others
        gradient_as_bucket_view=True,
        find_unused_parameters=has_experts,  # an expert that no token chose has no gradient
    )
    mixed = "no" if precision == "fp32" else precision
    # never cpu=True beside a plugin: that gives plain DDP without a word
    accelerator = (
        Accelerator(mixed_precision=mixed, deepspeed_plugin=plugin)
        if plugin
        else Accelerator(mixed_precision=mixed, kwargs_handlers=[kwargs])
    )
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


def prepare(accelerator: Any, world: World, objective: Any, optimizer: Any, is_zero: bool = False) -> Engine:
    """Hand objective and optimizer to the engine and check what came back."""
    model, wrapped = accelerator.prepare(objective, optimizer)
    check_accelerator(accelerator, world)
    kind, expected = type(model).__name__, "DeepSpeedEngine" if is_zero else "DistributedDataParallel"
    if (world.size > 1 or is_zero) and kind != expected:
        raise RuntimeError(
            f"{world.size} ranks, but the engine made a {kind}, no {expected}: copies would train apart"
        )
    return Engine(accelerator, model, wrapped, optimizer, is_zero)


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
