"""One rank's job from rows to result, in running order. Called once the ranks have met."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError, UsageError
from launcher.base.learning_rate import pick_learning_rate
from launcher.train import checkpoint
from launcher.train.channel import Channel
from launcher.train.data import RunData, make_limits
from launcher.train.engine import Engine, make_accelerator, make_optimizer, prepare
from launcher.train.loop import Progress, Setup, config_has_experts, has_experts, run_loop
from launcher.train.loss import Objective, can_use_places
from launcher.train.methods import Tuned, apply_method, check_method
from launcher.train.metrics import MetricsFile
from launcher.train.model import check_tokenizer, load_model, load_model_config, load_tokenizer
from launcher.train.movement import Movement
from launcher.train.optimizer_state import named_trainable, restore
from launcher.train.order import Order, versions
from launcher.train.pack import rows_of_step, steps_per_epoch
from launcher.train.precision import Choice, choose_attention, choose_precision, load_dtype, torch_dtype
from launcher.train.result import Results
from launcher.train.row_facts import measure_order, warn_of_shreds
from launcher.train.samples import SAMPLES_FILE, encode_samples, make_sampler
from launcher.train.speed import fit_limits, settle_attention, speed_up
from launcher.train.stop import StopFlag
from launcher.train.token_cache import load_tokens
from launcher.train.trackers import EARLY_END_S, END_S, Trackers, pick_trackers
from launcher.train.utilization import Meter, find_peak, make_meter
from launcher.train.world import World, agree, broadcast, fingerprint, gather_floats
from launcher.train.zero import check_deepspeed, restore_zero


def run_job(order: Order, world: World, device: Any, channel: Channel, stop: StopFlag) -> bool:
    """Train and write the result; False when the run was asked to end before its last step."""
    import torch

    recipe = order.recipe
    _check_same(order.config_hash, device)
    data, config, precision, zero_config = agree(lambda: _read_rows(recipe, world, device, channel), device)
    questions = agree(lambda: encode_samples(recipe, data.template), device)
    warning = check_tokenizer(recipe.model.path, data.template.tokenizer)
    tuned, stored_dtype, notes = agree(lambda: _read_model(recipe, config, device, precision.value), device)
    if world.is_main:
        for message in (*data.messages, f"precision {precision.value}: {precision.reason}", *notes):
            channel.note(message)
        for message in (warning, warn_of_shreds(data.facts)):
            if message:
                channel.warn(message)
    has_parts = has_experts(tuned.causal)
    accelerator = make_accelerator(world, device, precision.value, has_parts, zero_config)
    causal = tuned.causal.to(device)
    # parts that learn are float32 beside a base in half precision; under DeepSpeed Accelerate has no autocast
    num_steps, dtype = _count_steps(recipe, data), torch_dtype(precision.value)
    with torch.autocast(device.type, dtype, enabled=precision.value != "fp32"):
        by_places = recipe.train.logits == "labels" and can_use_places(causal, device)
        notes = [note for note in (settle_attention(causal, device),) if note]
        notes += agree(lambda: speed_up(recipe, causal, device, dtype, num_steps), device)
    for message in notes if world.is_main else ():
        channel.note(message)
    objective = Objective(causal, by_places, dtype)
    optimizer = make_optimizer(recipe, tuned.causal, device)
    engine = prepare(accelerator, world, objective, optimizer, zero_config is not None)
    progress = agree(lambda: _resume(order, world, device, engine, tuned, data, channel), device)
    limits = make_limits(recipe, device.type != "cpu", data.train, data.eval)
    longest = max((*data.train.lengths, *data.eval.lengths))
    limits = fit_limits(limits, causal, device, longest)
    meter = _make_meter(recipe, world, device, tuned, dtype, channel)
    setup = Setup(
        recipe, world, device, channel, stop, order.run_dir, data, limits,
        engine, tuned, num_steps,
        _open_metrics(order, world, channel, progress.step),
        _results(order, data, tuned, engine),
        _watch_movement(recipe, tuned) if world.is_main else None,
        _figures(recipe, data, tuned, meter) if progress.step == 0 else {},
        sampler=make_sampler(
            questions, data.template.tokenizer, channel, device,
            order.run_dir / SAMPLES_FILE if world.is_main else None, recipe.engine == "deepspeed", progress.step,
        ),
        meter=meter,
    )  # fmt: skip
    is_done = False
    try:
        is_done = _train(setup, progress, order, stored_dtype)
    finally:
        setup.metrics.close(END_S if is_done else EARLY_END_S)
    return is_done


def _train(setup: Setup, progress: Progress, order: Order, stored_dtype: Any) -> bool:
    recipe, world, device, channel = setup.recipe, setup.world, setup.device, setup.channel
    if not run_loop(setup, progress):
        return False
    read_step = agree(lambda: _read_back(setup, order), device) if recipe.checkpoint.verify else None
    weights = setup.results.gather()
    if world.is_main:
        path = setup.results.write(setup.run_dir, setup.num_steps, stored_dtype, weights)
        read = {} if read_step is None else {"checkpoint_read": str(read_step)}
        channel.send(
            "result", {"path": str(path), "method": recipe.method, "base": recipe.model.path, **read}
        )
    gather_floats([1.0], device)  # nobody leaves while rank 0 writes
    return True


def _open_metrics(order: Order, world: World, channel: Channel, from_step: int) -> MetricsFile:
    if not world.is_main:
        return MetricsFile(None, channel, from_step)
    names = pick_trackers(order.recipe.train.trackers)
    trackers = Trackers(names, order.recipe, (order.run, order.run_dir), from_step, channel)
    return MetricsFile(order.run_dir / "metrics.jsonl", channel, from_step, trackers)


def _make_meter(
    recipe: Recipe, world: World, device: Any, tuned: Tuned, dtype: Any, channel: Channel
) -> Meter | None:
    if not world.is_main:
        return None
    peak = find_peak(recipe.train.peak_tflops, device, dtype)
    meter = make_meter(tuned.causal, has_experts(tuned.causal), peak, world.size)
    if meter.describe():
        channel.note(meter.describe())
    return meter


def _check_same(text: str, device: Any) -> None:
    marks = [row[0] for row in gather_floats([fingerprint(text)], device)]
    different = [rank for rank, mark in enumerate(marks) if mark != marks[0]]
    if different:
        raise UsageError(f"ranks {different} have another recipe than rank 0")


def _read_rows(
    recipe: Recipe, world: World, device: Any, channel: Channel
) -> tuple[RunData, Any, Choice, dict[str, Any] | None]:
    if world.is_main:
        pick_trackers(recipe.train.trackers)  # raises what should not be found after minutes of reading
    precision = choose_precision(recipe.train.precision, device)
    tokenizer = load_tokenizer(recipe.model.path, recipe.model.trust_remote_code)
    config = load_model_config(recipe, tokenizer)
    check_method(recipe, config)
    uses_zero = recipe.engine == "deepspeed"
    zero_config = (
        check_deepspeed(recipe, world, precision.value, config_has_experts(config)) if uses_zero else None
    )
    data = load_tokens(recipe, tokenizer, channel.note if world.is_main else lambda message: None)
    return data, config, precision, zero_config


def _read_model(recipe: Recipe, config: Any, device: Any, precision: str) -> tuple[Tuned, Any, list[str]]:
    attention = choose_attention(recipe, device, torch_dtype(precision))
    stored = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None) or torch_dtype("fp32")
    causal = load_model(recipe, config, load_dtype(recipe, precision), attention.value)
    causal.config.use_cache = False
    tuned = apply_method(recipe, causal)
    if recipe.train.gradient_checkpointing:
        # not the re-entrant kind: it loses the adapters' gradients where inputs need none, and breaks DDP
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return tuned, stored, [f"attention {attention.value}: {attention.reason}", tuned.describe()]


def _count_steps(recipe: Recipe, data: RunData) -> int:
    if recipe.train.max_steps:
        return recipe.train.max_steps
    per_epoch = steps_per_epoch(len(data.train.rows), recipe.train.global_batch_size)
    return max(1, round(recipe.train.epochs * per_epoch))


def _results(order: Order, data: RunData, tuned: Tuned, engine: Engine) -> Results:
    facts = {"run": order.run, "config_hash": order.config_hash, "versions": versions()}
    return Results(order.recipe, tuned, data.template, data.messages[0], facts, engine.is_zero)


def _watch_movement(recipe: Recipe, tuned: Tuned) -> Movement | None:
    # DeepSpeed keeps gradients to itself
    return (
        Movement(named_trainable(tuned.causal), has_experts(tuned.causal)) if recipe.engine == "ddp" else None
    )


def _figures(recipe: Recipe, data: RunData, tuned: Tuned, meter: Meter | None) -> dict[str, Any]:
    """What a curve is judged by, beside itself."""
    batch_size, num_rows = recipe.train.global_batch_size, len(data.train.rows)
    steps = range(1, 1 + min(steps_per_epoch(num_rows, batch_size), max(1, 1000 // batch_size)))
    drawn = [row for step in steps for row in rows_of_step(step, num_rows, batch_size, recipe.train.seed)]
    embeddings = tuned.causal.get_input_embeddings()
    # where they learn whole beside an adapter peft wraps them, and older ones of it pass no attribute on
    embeddings = getattr(embeddings, "original_module", embeddings)
    return {
        **data.facts,
        "vocab_size": embeddings.num_embeddings,
        "rows": num_rows,
        "eval_rows": len(data.eval.rows),
        "file_order_share": measure_order(drawn),
        "parameters": tuned.counts["all"],
        "trainable_parameters": sum(number for kind, number in tuned.counts.items() if kind != "all"),
        "learning_rate": pick_learning_rate(recipe),
        "peak_tflops": meter.peak if meter else None,
    }


def _resume(  # noqa: PLR0913  # the parts of a Setup, before there is one
    order: Order, world: World, device: Any, engine: Engine, tuned: Tuned, data: RunData, channel: Channel,
    wish: str = "",
) -> Progress:  # fmt: skip
    """Go on from a checkpoint, if the recipe (or ``wish``) asks for it and there is one; only rank 0 needs to see it."""
    import torch

    folder, state = None, dict[str, Any]()
    wish = wish or order.recipe.checkpoint.resume
    if world.is_main:
        checkpoint.sweep(order.run_dir)
        folder = _find(wish, order.run_dir, channel)
        if folder is not None:
            state = checkpoint.read_state(folder)
            _check_fits(folder, state, order.recipe, tuned, data, channel)
    best, scaler = state.get("best_loss"), engine.accelerator.scaler
    scale = state.get("scaler") or {}
    numbers = torch.tensor(
        [state.get("step", 0), state.get("tokens", 0), state.get("optimizer_steps", 0),
         float("inf") if best is None else best, scale.get("scale", 0.0), scale.get("_growth_tracker", 0)],
        dtype=torch.float64, device=device,
    )  # fmt: skip
    broadcast(numbers)
    step, tokens, optimizer_steps, best_loss, scale_value, growth = numbers.tolist()
    if step:
        weights = checkpoint.read_tensors(folder, "trainable") if folder else None
        moments = checkpoint.read_tensors(folder, "optimizer") if folder else None
        trainable = named_trainable(tuned.causal)
        if engine.is_zero:
            restore_zero(engine.model, trainable, weights, moments, int(optimizer_steps))
        else:
            restore(engine.raw_optimizer, trainable, weights, moments, int(optimizer_steps))
        if scaler is not None and scale_value:
            scaler.load_state_dict(
                {**scaler.state_dict(), "scale": scale_value, "_growth_tracker": int(growth)}
            )
        if world.is_main:
            channel.note(f"goes on after step {int(step)} of {folder}")
    return Progress(int(step), int(tokens), best_loss)


def _read_back(setup: Setup, order: Order) -> int:
    """Load the last step's checkpoint by the way of a resume; its step, 0 when it is not whole.

    That one and not the newest: a run folder may hold later steps of an earlier run, which would end up in the result.
    """
    folder, wish = checkpoint.checkpoint_folder(order.run_dir, setup.num_steps), "never"
    if setup.world.is_main:
        try:
            checkpoint.read_manifest(folder)
            wish = str(folder)
        except ValueError as error:
            setup.channel.warn(f"checkpoint of the last step: {error}")
    return _resume(
        order, setup.world, setup.device, setup.engine, setup.tuned, setup.data, setup.channel, wish
    ).step


def _find(wish: str, run_dir: Path, channel: Channel) -> Path | None:
    if wish == "never":
        return None
    if wish == "auto":
        folder, skipped = checkpoint.find_newest(run_dir)
        for reason in skipped:
            channel.warn(f"checkpoint passed over: {reason}")
        return folder
    try:
        checkpoint.read_manifest(Path(wish))
    except ValueError as error:
        raise ConfigError(f"checkpoint.resume: {wish}: {error}") from None
    return Path(wish)


def _check_fits(
    folder: Path, state: dict[str, Any], recipe: Recipe, tuned: Tuned, data: RunData, channel: Channel
) -> None:
    saved, here = checkpoint.read_tensors(folder, "trainable"), named_trainable(tuned.causal)
    shapes = (
        {name: tuple(t.shape) for name, t in saved.items()},
        {
            name: tuple(getattr(p, "ds_shape", p.shape)) for name, p in here.items()
        },  # ZeRO-3 leaves empty shells
    )
    if shapes[0] != shapes[1]:
        raise ConfigError(
            f"checkpoint.resume: {folder} holds other parameters (method {state.get('method')}, {len(saved)} tensors) "
            f"than this recipe trains (method {recipe.method}, {len(here)})",
            "the same method and its settings, or checkpoint.resume=never",
        )
    now = {
        "global_batch_size": recipe.train.global_batch_size, "seed": recipe.train.seed,
        "num_rows": len(data.train.rows),
    }  # fmt: skip
    changed = [f"{key} {state.get(key)} -> {value}" for key, value in now.items() if state.get(key) != value]
    if changed:
        channel.warn(f"rows will come in another order than before the checkpoint: {', '.join(changed)}")
