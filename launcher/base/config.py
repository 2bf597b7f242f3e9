"""The schema of a recipe as plain dataclasses; dict -> Recipe and back. Standard library only: ranks import it.

On the head ``launcher.base.recipe`` merges file and ``key=value`` into this schema and sends the result as JSON;
each rank reads that with ``from_dict``. Field names are the user's keys: they stay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Union

from launcher.base.errors import ConfigError
from launcher.base.limits import find_wrong

#: endings of the files that rows are read from
ROW_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is trained.

    Attributes:
        path: a folder as transformers saves them, a name on the hub, or ``demo`` (small, made from the seed).
        attention: how attention is computed; ``auto`` takes the best that works.
        trust_remote_code: whether Python code inside the model folder may run.
    """

    path: str = ""
    attention: str = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Which rows are learnt, and how they become tokens.

    Attributes:
        path: a file of rows, a folder of them, or ``demo``.
        eval_path: rows for validation; null takes ``eval_fraction`` of ``path``.
        eval_fraction: share of the rows held back for validation, drawn by ``train.seed``.
        template: how a row becomes text; ``auto`` takes the tokenizer's chat template if it has one.
        mask_prompt: learn the answers alone, not the questions.
        max_length: tokens a row may have; what is longer is cut at its end.
        packing: put several rows into one sequence, with attention kept inside each row.
        pack_length: tokens of such a sequence where attention goes by mask; null takes the measured best.
        on_bad_row: ``error`` refuses the file, ``skip`` leaves bad rows out and counts them.
        max_rows: only so many rows, the first ones, of ``path`` and of ``eval_path``; null takes all.
        cache: where each node keeps rows as tokens: ``auto`` (below its user's cache folder), ``never``, or a folder.
    """

    path: str = ""
    eval_path: str | None = None
    eval_fraction: float = 0.1
    template: str = "auto"
    mask_prompt: bool = True
    max_length: int = 1024
    packing: bool = True
    pack_length: int | None = None
    on_bad_row: str = "error"
    max_rows: int | None = None
    cache: str = "auto"


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """Low-rank adapters, for ``method: lora``.

    Attributes:
        targets: names of linear layers; empty: the attention's projections, found from the model;
            ``[all]``: all linear layers of the decoder's blocks.
        modules_to_save: modules trained whole beside the adapters, and saved with them.
        rslora: scale by alpha / sqrt(r) instead of alpha / r.
        light: compute adapters in the format of the base, without peft's casts.
    """

    r: int = 8
    alpha: float = 16.0
    dropout: float = 0.05
    targets: list[str] = field(default_factory=list)
    modules_to_save: list[str] = field(default_factory=list)
    rslora: bool = False
    light: bool = True


@dataclass(frozen=True, slots=True)
class FreezeConfig:
    """What stays trainable, for ``method: freeze``.

    Attributes:
        last_layers: decoder blocks that are trained, counted from the last.
        modules: further modules by name or pattern (``lm_head``, ``model.layers.0.mlp``, ``*norm*``).
    """

    last_layers: int = 2
    modules: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeepspeedConfig:
    """For ``engine: deepspeed``.

    Attributes:
        zero_stage: 1, 2 or 3.
        config: a DeepSpeed JSON file to use instead of the generated one.
    """

    zero_stage: int = 2
    config: str | None = None


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How long and how fast.

    Attributes:
        max_steps: optimizer steps; 0: as many as ``epochs`` needs.
        epochs: passes over the rows, when ``max_steps`` is 0.
        global_batch_size: rows a step over all ranks: more ranks change the time, not the training.
        max_tokens_per_card: tokens a rank computes at once, the rest is accumulated; null: 8192, or one row on a CPU.
        learning_rate: the highest; null takes the method's usual one.
        warmup_ratio: share of the steps in which the rate rises to it.
        max_grad_norm: gradients are scaled down to this norm; 0: never.
        precision: of computing; ``auto`` takes the best that works on the card.
        gradient_checkpointing: compute activations twice instead of keeping them.
        compile: decoder blocks, with torch.compile; ``auto``: on cards where a probe works, for runs worth it.
        kernels: of norms and activations: ``liger`` (Triton), ``torch``'s fused ones, or the ``model``'s own code.
        logits: at ``labels`` alone, in chunks, or at ``all`` tokens, in one tensor.
        eval_every: steps between validations; 0: at the end alone.
        save_every: steps between checkpoints; 0: at the end alone.
        samples: questions that the model answers before the first step and at each validation (``samples.jsonl``).
        sample_tokens: at most so many tokens such an answer.
        peak_tflops: of a card, against which MFU is measured; null: by its data sheet, or measured at the start.
        trackers: names of those that get the figures of each step; null: TensorBoard where it is installed.
        on_nonfinite: ``stop`` ends the run at a loss or gradient that is not a number, ``skip`` leaves
            such a step out.
    """

    max_steps: int = 0
    epochs: float = 3.0
    global_batch_size: int = 16
    max_tokens_per_card: int | None = None
    learning_rate: float | None = None
    scheduler: str = "cosine"
    warmup_ratio: float = 0.03
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    precision: str = "auto"
    gradient_checkpointing: bool = False
    compile: str = "auto"
    kernels: str = "auto"
    logits: str = "labels"
    seed: int = 42
    eval_every: int = 0
    save_every: int = 0
    samples: list[str] = field(default_factory=list)
    sample_tokens: int = 64
    peak_tflops: float | None = None
    trackers: list[str] | None = None
    on_nonfinite: str = "stop"


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """What is kept, and from where to go on.

    Attributes:
        keep: newest checkpoints that stay; the best one stays beside them.
        resume: ``auto`` (the newest whole one of the run folder), ``never``, or the path of one.
        verify: after the last step, read its checkpoint back as a resume would.
    """

    keep: int = 2
    resume: str = "auto"
    verify: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """A whole recipe: what ``dcu-launch recipe.yaml key=value`` comes to.

    Attributes:
        method: lora, freeze or full.
        engine: what does data parallelism.
        env: variables of the ranks, NAME: value; ``env.setup`` lists set-up scripts. The launcher's, not the ranks'.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    method: str = "lora"
    lora: LoraConfig = field(default_factory=LoraConfig)
    freeze: FreezeConfig = field(default_factory=FreezeConfig)
    engine: str = "ddp"
    deepspeed: DeepspeedConfig = field(default_factory=DeepspeedConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    env: dict[str, Any] = field(default_factory=dict)


def leaf_types() -> dict[str, Any]:
    """Every key of the schema, dotted, with its type."""
    return dict(_leaf_types(Recipe, ""))


def _leaf_types(schema: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(schema)
    for item in dataclasses.fields(schema):
        if dataclasses.is_dataclass(hints[item.name]):
            yield from _leaf_types(hints[item.name], f"{prefix}{item.name}.")
        else:
            yield prefix + item.name, hints[item.name]


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain nested dicts that JSON can hold."""
    return dataclasses.asdict(recipe)


def from_dict(values: dict[str, Any]) -> Recipe:
    """The recipe of plain nested dicts; keys left out take their defaults.

    Raises:
        ConfigError: with all unknown keys and wrong values at once.
    """
    problems: list[str] = []
    recipe: Recipe = _build(Recipe, values, "", problems)
    if problems:
        raise ConfigError("\n".join(problems), "this recipe was made by another version of dcu-launch")
    if wrong := find_wrong(to_dict(recipe)):
        raise ConfigError("\n".join(wrong))
    return recipe


def _build(schema: Any, values: dict[str, Any], prefix: str, problems: list[str]) -> Any:
    hints = typing.get_type_hints(schema)
    problems += [f"{prefix}{key}: unknown key" for key in values if key not in hints]
    given: dict[str, Any] = {}
    for name, hint in hints.items():
        if name not in values:
            continue
        value = values[name]
        if dataclasses.is_dataclass(hint):
            if isinstance(value, dict):
                given[name] = _build(hint, value, f"{prefix}{name}.", problems)
            else:
                problems.append(f"{prefix}{name}: expected {describe_type(hint)}, found {value!r}")
        elif fits(value, hint):
            given[name] = float(value) if float in _members(hint) and isinstance(value, int) else value
        else:
            problems.append(f"{prefix}{name}: expected {describe_type(hint)}, found {value!r}")
    return schema(**given)


def _members(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in (Union, UnionType) else (hint,)


def fits(value: object, hint: Any) -> bool:
    """Whether a value read from JSON is of the type of a schema's field."""
    for member in _members(hint):
        origin = typing.get_origin(member) or member
        if origin is list:
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                return True
        elif origin is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return True
        elif origin is int:
            if isinstance(value, int) and not isinstance(value, bool):
                return True
        elif isinstance(value, origin):
            return True
    return False


def describe_type(hint: Any) -> str:
    """A type in the user's words."""
    words = {
        str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list of names",
        dict: "a mapping of NAME: value", type(None): "null",
    }  # fmt: skip
    return " or ".join(words.get(typing.get_origin(m) or m, "a section of keys") for m in _members(hint))


def config_hash(values: dict[str, Any]) -> str:
    """SHA-256 of a resolved recipe, as hex: the same on all ranks or nothing starts."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
