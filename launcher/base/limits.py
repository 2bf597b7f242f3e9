"""What the values of a recipe may be: the words and ranges of its keys, and what is wrong with those of one recipe.

In: nested dicts of the schema's form (``launcher.base.config``). Out: problems in the user's words. Standard library only:
ranks import it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: keys with a closed set of words
CHOICES: dict[str, tuple[str, ...]] = {
    "model.attention": ("auto", "varlen", "sdpa", "eager"),
    "data.template": ("auto", "chat", "zh", "en"),
    "data.on_bad_row": ("error", "skip"),
    "method": ("lora", "freeze", "full"),
    "engine": ("ddp", "deepspeed"),
    "train.scheduler": ("cosine", "linear", "constant"),
    "train.precision": ("auto", "bf16", "fp16", "fp32"),
    "train.compile": ("auto", "always", "never"),
    "train.kernels": ("auto", "liger", "torch", "model"),
    "train.logits": ("labels", "all"),
    "train.on_nonfinite": ("stop", "skip"),
}

#: keys with limits: the least, the most, whether the ends themselves are allowed
LIMITS: dict[str, tuple[float, float, bool]] = {
    "data.eval_fraction": (0, 0.9, True),
    "data.max_length": (8, 1 << 20, True),
    "data.pack_length": (8, 1 << 20, True),
    "data.max_rows": (1, 1 << 40, True),
    "lora.r": (1, 4096, True),
    "lora.alpha": (0, 1e6, False),
    "lora.dropout": (0, 0.99, True),
    "deepspeed.zero_stage": (1, 3, True),
    "train.max_steps": (0, 1 << 40, True),
    "train.epochs": (0, 1e6, False),
    "train.global_batch_size": (1, 1 << 24, True),
    "train.max_tokens_per_card": (8, 1 << 26, True),
    "train.learning_rate": (0, 10, False),
    "train.warmup_ratio": (0, 1, True),
    "train.weight_decay": (0, 10, True),
    "train.max_grad_norm": (0, 1e9, True),
    "train.seed": (0, (1 << 31) - 1, True),
    "train.eval_every": (0, 1 << 40, True),
    "train.save_every": (0, 1 << 40, True),
    "train.sample_tokens": (1, 4096, True),
    "train.peak_tflops": (0, 1e6, False),
    "checkpoint.keep": (1, 1 << 20, True),
}


def find_wrong(recipe: dict[str, Any]) -> list[str]:
    """What is wrong with the values of a whole recipe, one line ``key: problem`` each, for all keys."""
    values = dict(flatten(recipe))
    problems = []
    for key, words in CHOICES.items():
        if values[key] not in words:
            problems.append(f"{key}: expected one of {', '.join(words)}; found {values[key]!r}")
    for key, (least, most, ends) in LIMITS.items():
        value = values[key]
        if value is None:
            continue
        if not (least <= value <= most if ends else least < value < most):
            problems.append(f"{key}: expected {_range(least, most, ends)}; found {value!r}")
    problems += [
        f"{key}: holds a NUL character"
        for key, value in values.items()
        if isinstance(value, str) and "\0" in value
    ]
    for key, what in (("model.path", "a model folder"), ("data.path", "a file or folder of rows")):
        if not str(values[key]).strip():
            problems.append(f"{key}: not given; expected {what}, or demo")
    cache = str(values["data.cache"])
    if cache not in ("auto", "never") and not cache.startswith(("/", "~")):
        problems.append(f"data.cache: expected auto, never or a folder from / or ~ on; found {cache!r}")
    length, room = values["data.max_length"], values["train.max_tokens_per_card"]
    if room is not None and length > room:
        problems.append(
            f"train.max_tokens_per_card: expected at least data.max_length ({length}); found {room}"
        )
    return problems


def _range(least: float, most: float, ends: bool) -> str:
    if not ends:
        return f"more than {least:g} and less than {most:g}"
    return f"at least {least:g}" if most >= 1 << 20 else f"{least:g} to {most:g}"


def flatten(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested dicts; ``env`` is one value, since its names are the user's."""
    for key, value in values.items():
        if isinstance(value, dict) and prefix + key != "env":
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
