"""The loop: a step after another, until the end or a stop at the border of a step. Runs in every rank.

Reading order is running order: ``run_loop`` -> ``run_step`` -> ``evaluate`` -> ``save``.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from launcher.base.config import Recipe
from launcher.base.learning_rate import pick_learning_rate
from launcher.train import checkpoint, zero
from launcher.train.ahead import Ahead
from launcher.train.channel import Channel
from launcher.train.data import RunData, make_batch
from launcher.train.engine import Engine
from launcher.train.methods import Tuned
from launcher.train.metrics import MetricsFile
from launcher.train.movement import Movement
from launcher.train.optimizer_state import collect_moments, named_trainable
from launcher.train.pack import PackLimits, plan_step, rows_of_step, steps_per_epoch
from launcher.train.result import Results
from launcher.train.samples import Sampler
from launcher.train.schedule import rate_factor
from launcher.train.step_clock import StepClock
from launcher.train.stop import StopFlag
from launcher.train.utilization import Meter
from launcher.train.world import World, gather_floats

_EVAL_ROWS = 256


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a step needs and that does not change.

    Attributes:
        num_steps: of the whole run, those before a resume included.
        results: writes what was learnt, for a checkpoint that is the best and at the end.
        movement: rank 0's look at gradients and parameters.
        figures: about model and rows; go into the first row of metrics, for who judges the curve.
        sampler: asks fixed questions at each validation, if the recipe has any.
        meter: rank 0's, of what a step makes of its card.
    """

    recipe: Recipe
    world: World
    device: Any
    channel: Channel
    stop: StopFlag
    run_dir: Path
    data: RunData
    limits: PackLimits
    engine: Engine
    tuned: Tuned
    num_steps: int
    metrics: MetricsFile
    results: Results
    movement: Movement | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    ahead: Ahead = field(default_factory=Ahead)
    sampler: Sampler | None = None
    meter: Meter | None = None


@dataclass(slots=True)
class Progress:
    """Where the run stands.

    Attributes:
        step: the last one done.
        tokens: learnt from up to there, padding not counted.
        best_loss: lowest validation loss so far.
        stop: whether any rank was asked to end; save: to write a checkpoint.
    """

    step: int = 0
    tokens: int = 0
    best_loss: float = math.inf
    stop: bool = False
    save: bool = False


class NonFiniteError(Exception):
    """A loss or gradient is not a number."""


def run_loop(setup: Setup, progress: Progress) -> bool:
    """Train up to the last step; False when the run was asked to end before."""
    train = setup.recipe.train
    setup.stop.arm()
    figures = setup.figures
    if setup.sampler and progress.step == 0:
        setup.sampler.take(setup.engine.model, 0, setup.stop)  # what the base answers, to compare with
    while progress.step < setup.num_steps and not progress.stop:
        row = run_step(setup, progress)
        if figures:
            row["facts"], figures = {**figures, **row.get("facts", {})}, {}
        is_last, is_best = progress.step == setup.num_steps, False
        measures = is_last or bool(train.eval_every and progress.step % train.eval_every == 0)
        if setup.data.eval.rows and measures:
            loss = evaluate(setup, progress)
            if loss is not None:
                row["eval_loss"] = loss
                is_best = loss < progress.best_loss
                progress.best_loss = (
                    min(loss, progress.best_loss) if math.isfinite(loss) else progress.best_loss
                )
        setup.metrics.write(progress.step, row)
        if setup.sampler and measures and not progress.stop:
            setup.sampler.take(setup.engine.model, progress.step, setup.stop)
        due = train.save_every and progress.step % train.save_every == 0
        if is_last or is_best or due or progress.stop or progress.save:
            save(setup, progress, is_best)
            progress.save = False
    return progress.step == setup.num_steps


def run_step(setup: Setup, progress: Progress) -> dict[str, Any]:
    """One optimizer step over the rows of all ranks; the row of figures about it."""
    recipe, world, engine, tokens = setup.recipe, setup.world, setup.engine, setup.data.train
    started, step = time.perf_counter(), progress.step + 1
    batch_size, seed = recipe.train.global_batch_size, recipe.train.seed
    rows = rows_of_step(step, len(tokens.rows), batch_size, seed)
    micros = _plan(setup, rows)
    following = _plan(setup, rows_of_step(step + 1, len(tokens.rows), batch_size, seed))[0]
    rate = pick_learning_rate(recipe) * rate_factor(
        step, setup.num_steps, recipe.train.warmup_ratio, recipe.train.scheduler
    )
    for group in engine.raw_optimizer.param_groups:
        group["lr"] = rate
    # Dropout drawn from seed, step and rank: a run that goes on draws what an unbroken one would have drawn.
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + world.rank)
    clock = StepClock(setup.device)
    loss_sum = _accumulate(setup, micros, tokens.count_labels(rows), clock, following)
    if progress.step == 0:
        _check_gradients(setup)
    if setup.movement is not None:
        setup.movement.see_gradients()
    orders = setup.channel.poll()
    mine = [
        loss_sum,
        setup.stop.is_set or "stop" in orders,
        "save" in orders,
        clock.own_s(),
        clock.wait_s,
    ]
    seen = gather_floats([float(value) for value in mine], setup.device)
    norm, was_taken = _finish_step(setup, step, [values[0] for values in seen])
    found = setup.movement.see_step(not was_taken) if setup.movement is not None else {}
    progress.step, progress.tokens = step, progress.tokens + tokens.count_tokens(rows)
    progress.stop = progress.stop or any(values[1] for values in seen)
    # rank 0's word alone: it may reach the others a step later, and would count twice
    progress.save = bool(seen[0][2])
    row = _describe_step(setup, progress, rows, seen, {"lr": rate, "grad_norm": norm, "step_s": started})
    return {**row, "facts": found} if found else row


def _plan(setup: Setup, rows: list[int]) -> list[Any]:
    """This rank's micro-batches for the rows of a step."""
    return plan_step(rows, setup.data.train.lengths, setup.world.size, setup.limits)[setup.world.rank]


def _describe_step(
    setup: Setup, progress: Progress, rows: list[int], seen: list[list[float]], known: dict[str, float]
) -> dict[str, Any]:
    """The row of figures about a step; ``step_s`` comes in as the time it began."""
    tokens, step_s = setup.data.train, time.perf_counter() - known["step_s"]
    num_tokens, num_labels = tokens.count_tokens(rows), tokens.count_labels(rows)
    per_epoch = steps_per_epoch(len(tokens.rows), setup.recipe.train.global_batch_size)
    row: dict[str, Any] = {
        **known, "loss": sum(values[0] for values in seen) / num_labels,
        "tokens": num_tokens, "label_tokens": num_labels, "rows": len(rows), "tokens_per_s": num_tokens / step_s,
        "step_s": step_s, "epoch": progress.step / per_epoch, "tokens_total": progress.tokens,
        "num_steps": setup.num_steps,
        "data_wait_s": max(values[4] for values in seen),
        "slowest_rank": max(range(len(seen)), key=lambda rank: seen[rank][3]),
        "slowest_step_s": max(values[3] for values in seen),
        "median_step_s": statistics.median_low(values[3] for values in seen), "time": time.time(),
    }  # fmt: skip
    if setup.meter is not None:
        row |= setup.meter.measure([tokens.lengths[number] for number in rows], num_labels, step_s)
    if setup.device.type == "cuda":
        row["memory_gib"] = torch.cuda.max_memory_allocated(setup.device) / 2**30
    return row


def _accumulate(
    setup: Setup, micros: list[Any], num_labels: int, clock: StepClock, following: Any = None
) -> float:
    """Forward and backward of this rank's micro-batches; the sum of its losses.

    Args:
        following: the first micro-batch of the next step, which is made while the card is busy.
    """
    engine = setup.engine
    total = torch.zeros((), dtype=torch.float64, device=setup.device)
    if not (engine.model.training and setup.tuned.causal.training):  # it goes through every module
        engine.model.train()
    for index, micro in enumerate(micros):
        with clock.data():
            batch = setup.ahead.take(setup.data.train, micro, setup.device, setup.limits)
        # the engine takes the mean over ranks: what is wanted is the sum, over all label tokens of the step
        scale = setup.world.size / num_labels
        with engine.begin_micro(is_last=index + 1 == len(micros)):
            with clock.forward():
                loss = engine.model(batch)
            engine.backward(loss * scale)
        total += loss.detach()
    if following:
        setup.ahead.prepare(setup.data.train, following, setup.device, setup.limits)
    return float(total)


def _check_gradients(setup: Setup) -> None:
    """Raise RuntimeError when a part that should learn gets no gradient: the run would look normal."""
    trainable = named_trainable(setup.tuned.causal)
    if has_experts(setup.tuned.causal):
        return  # one that no token chose has none
    silent = zero.find_silent(trainable) if setup.engine.is_zero else [
        name for name, p in trainable.items()
        if p.grad is None or ("lora_B" in name and not bool(p.grad.any()))
    ]  # fmt: skip
    if silent:
        raise RuntimeError(
            f"{len(silent)} parameters should learn but get no gradient: {', '.join(silent[:8])}"
        )


def has_experts(causal: Any) -> bool:
    """Whether the model sends tokens to some of its parts only."""
    return config_has_experts(causal.config)


def config_has_experts(config: Any) -> bool:
    """Whether a model of this configuration does."""
    names = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return any(getattr(config, name, None) for name in names)


def _finish_step(setup: Setup, step: int, losses: list[float]) -> tuple[float, bool]:
    """Let the engine step unless a number is not finite; then skip or stop, as the recipe says.

    Returns the gradient's norm, and whether the step was taken.
    """
    engine, stops = setup.engine, setup.recipe.train.on_nonfinite == "stop"
    wrong = [rank for rank, loss in enumerate(losses) if not math.isfinite(loss)]
    norm = math.nan
    if wrong:
        what = f"the loss of rank {wrong[0]} is {losses[wrong[0]]}"
        if not stops:
            engine.leave_out()
    else:
        norm, taken = engine.step(setup.recipe.train.max_grad_norm)
        if math.isfinite(norm) or engine.scales_loss:
            return norm, taken
        what = f"the gradient's norm is {norm}"
        stops = stops or taken  # in fp32 DeepSpeed steps whatever the norm
    if stops:
        raise NonFiniteError(f"step {step}: {what}")
    if setup.world.is_main:
        setup.channel.warn(f"step {step} is left out: {what}")
    return norm, False


def evaluate(setup: Setup, progress: Progress) -> float | None:
    """The mean loss over the label tokens of all rows held back; None when a stop came in between."""
    tokens, total = setup.data.eval, 0.0
    setup.engine.model.eval()
    for start in range(0, len(tokens.rows), _EVAL_ROWS):
        rows = range(start, min(start + _EVAL_ROWS, len(tokens.rows)))
        plan = plan_step(rows, tokens.lengths, setup.world.size, setup.limits)[setup.world.rank]
        part = torch.zeros((), dtype=torch.float64, device=setup.device)
        with torch.no_grad():
            for micro in plan:
                part += setup.engine.model(make_batch(tokens, micro, setup.device, setup.limits))
        seen = gather_floats([float(part), float(setup.stop.is_set)], setup.device)
        total += sum(values[0] for values in seen)
        if any(values[1] for values in seen):
            progress.stop = True
            return None
    return total / sum(tokens.labels)


def save(setup: Setup, progress: Progress, is_best: bool) -> None:
    """Write the checkpoint of this step, by rank 0 alone; the others wait for it at the next exchange.

    The best one so far also holds what ``generate`` and ``merge`` load.
    """
    engine, trainable = setup.engine, named_trainable(setup.tuned.causal)
    if engine.is_zero:  # all ranks give their pieces
        moments, optimizer_steps = zero.gather_moments(engine.model, trainable)
        trainable = zero.gather_trainable(trainable)
    elif setup.world.is_main:
        moments, optimizer_steps = collect_moments(engine.raw_optimizer, trainable)
    if setup.world.is_main:
        scaler = engine.accelerator.scaler
        state = {
            "step": progress.step, "tokens": progress.tokens, "optimizer_steps": optimizer_steps,
            "best_loss": progress.best_loss if math.isfinite(progress.best_loss) else None,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "global_batch_size": setup.recipe.train.global_batch_size, "seed": setup.recipe.train.seed,
            "num_rows": len(setup.data.train.rows), "method": setup.recipe.method, "engine": setup.recipe.engine,
        }  # fmt: skip
        facts = {**setup.results.facts, "tokens": progress.tokens, "world_size": setup.world.size}
        tensors = {"trainable": trainable, "optimizer": moments}

        def add(folder: Path) -> None:
            setup.results.add_to_checkpoint(folder, progress.step, trainable)

        folder = checkpoint.write_checkpoint(
            setup.run_dir, progress.step, tensors, state, facts, add if is_best else None
        )
        if is_best:
            checkpoint.point(setup.run_dir, "best", folder)
        for problem in checkpoint.prune(setup.run_dir, setup.recipe.checkpoint.keep):
            setup.channel.warn(problem)
        told = {"best": True, "adapter_bytes": checkpoint.adapter_bytes(folder)} if is_best else {}
        setup.channel.send("checkpoint", {"path": str(folder), **told}, progress.step)
    gather_floats([1.0], setup.device)
