"""Causal model + method -> which parameters learn: LoRA adapters, the last blocks, or all. Runs in every rank."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from launcher.base.config import FreezeConfig, LoraConfig, Recipe
from launcher.base.errors import ConfigError
from launcher.train.model import decoder_layers


@dataclass(frozen=True, slots=True)
class Tuned:
    """A model that is ready to learn.

    Attributes:
        causal: the causal model, with adapters inside it under LoRA.
        peft: peft's wrapper, which saves and loads adapters; None for other methods.
        counts: trainable numbers by kind of module, and all numbers under ``all``.
    """

    causal: Any
    peft: Any
    counts: dict[str, int]

    def describe(self) -> str:
        """One line of what learns."""
        total, trained = self.counts["all"], sum(n for kind, n in self.counts.items() if kind != "all")
        kinds = ", ".join(f"{kind} {n:,}" for kind, n in self.counts.items() if kind != "all")
        return f"{trained:,} of {total:,} parameters learn ({100 * trained / total:.2f}%): {kinds}"


def check_method(recipe: Recipe, config: Any) -> None:
    """Refuse what cannot be, before any weights are read; raises ConfigError."""
    _refuse_quantized(recipe.model.path, config)
    _check_count(recipe, config)
    _check_names(recipe, config)


def _check_count(recipe: Recipe, config: Any) -> None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    count = getattr(text, "num_hidden_layers", None) or getattr(text, "num_layers", None)
    if recipe.method != "freeze" or count is None:
        return
    last = recipe.freeze.last_layers
    if not 0 <= last <= count:
        raise ConfigError(
            f"freeze.last_layers: expected 1 to {count}, the number of this model's decoder blocks; found {last}",
            "it counts from the last block: 2 trains the last two",
        )
    if last == 0 and not recipe.freeze.modules:
        raise ConfigError("freeze.last_layers: 0 without freeze.modules: nothing would learn")


def _check_names(recipe: Recipe, config: Any) -> None:
    """Look the modules that a recipe names up in a model without weights, which takes a tenth of a second."""
    lora, freeze = recipe.lora, recipe.freeze
    wishes = {
        "lora": ("lora.modules_to_save", lora.modules_to_save),
        "freeze": ("freeze.modules", freeze.modules),
    }
    key, patterns = wishes.get(recipe.method, ("", []))
    targets = lora.targets if recipe.method == "lora" else []
    if not (patterns or targets):
        return
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            # of a copy: some models write what they chose into their configuration
            causal = AutoModelForCausalLM.from_config(
                copy.deepcopy(config), trust_remote_code=recipe.model.trust_remote_code
            )
    except Exception:  # a model's own code may need real tensors: then the loaded model says it, later
        return
    if targets:
        find_targets(targets, causal)
    _refuse_unknown(key, patterns, [name for name, _ in causal.named_modules()])


def _refuse_quantized(path: str, config: Any) -> None:
    """transformers would ask for one more package, and then train what was never tried here."""
    found = getattr(config, "quantization_config", None)
    if found is None:
        return
    name = found.get("quant_method", "") if isinstance(found, dict) else getattr(found, "quant_method", "")
    name = getattr(name, "value", name) or "quantization_config"
    raise ConfigError(
        f"model.path: {path} holds quantized weights ({name} in its config.json), which cannot be trained here",
        "the model it was made from, in 16 bits; where memory is short: dcu-launch estimate, freeze, or ZeRO-3",
    )


def apply_method(recipe: Recipe, causal: Any) -> Tuned:
    """Make the method's parameters trainable, in float32, and all others not; raises ConfigError."""
    import torch

    # LoRA draws its first matrices: the same on every rank and for any number of ranks
    torch.manual_seed(recipe.train.seed)
    peft = None
    if recipe.method == "lora":
        peft = _add_lora(recipe.lora, causal)
    elif recipe.method == "freeze":
        _freeze(recipe.freeze, causal)
    for parameter in causal.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    counts = count_trainable(causal)
    trained = sum(number for kind, number in counts.items() if kind != "all")
    if trained == 0:
        raise ConfigError(f"method {recipe.method}: no parameter would learn")
    if trained == counts["all"] and recipe.method != "full":
        raise ConfigError(f"method {recipe.method}: all parameters would learn", "method=full says so")
    return Tuned(causal, peft, counts)


def count_trainable(causal: Any) -> dict[str, int]:
    """Trainable numbers by kind of module (its last name that is no number), and all numbers under ``all``."""
    counts: dict[str, int] = {}
    total = 0
    for name, parameter in causal.named_parameters():
        number = getattr(parameter, "ds_numel", parameter.numel())
        total += number
        if parameter.requires_grad:
            words = [w for w in name.split(".") if not w.isdigit() and w not in ("weight", "bias", "default")]
            words = [w for w in words if w not in ("lora_A", "lora_B", "modules_to_save")]
            counts[words[-1]] = counts.get(words[-1], 0) + number
    return {**counts, "all": total}


def _add_lora(lora: LoraConfig, causal: Any) -> Any:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    targets = find_targets(lora.targets, causal)
    names = [name for name, _ in causal.named_modules()]
    _refuse_unknown("lora.modules_to_save", lora.modules_to_save, names)
    return get_peft_model(
        causal,
        PeftConfig(
            task_type="CAUSAL_LM", r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout,
            target_modules=targets, modules_to_save=lora.modules_to_save or None, use_rslora=lora.rslora,
        ),
    )  # fmt: skip


def find_targets(asked: list[str], causal: Any) -> list[str]:
    """Names of the linear layers that get adapters.

    Without a wish: those of the attention. ``all``: all of the decoder's blocks. Otherwise the names asked for, each of
    which must be there.
    """
    linear = _linear_names(causal)
    if asked and asked != ["all"]:
        _refuse_unknown("lora.targets", asked, linear)
        return asked
    prefix = decoder_layers(causal)[0] + "."
    inside = [name for name in linear if name.startswith(prefix)]
    if not asked:
        inside = [
            name for name in inside if "attn" in name.split(".")[-2] or "attention" in name.split(".")[-2]
        ]
        if not inside:
            raise ConfigError(
                f"lora.targets: no attention is found in {type(causal).__name__}",
                "lora.targets=[all], or names: " + ", ".join(sorted({n.split(".")[-1] for n in linear})),
            )
    chosen = set(inside)
    short = sorted({name.split(".")[-1] for name in inside})
    # a last name that other layers bear too would reach them as well: then the name of its parent goes with it
    clear = [s for s in short if all(n in chosen for n in linear if n.split(".")[-1] == s)]
    longer = {".".join(n.split(".")[-2:]) for n in inside if n.split(".")[-1] not in clear}
    return clear + sorted(longer)


def _linear_names(causal: Any) -> list[str]:
    import torch
    from transformers.pytorch_utils import Conv1D

    kinds = (torch.nn.Linear, Conv1D)
    return [name for name, module in causal.named_modules() if isinstance(module, kinds)]


def _freeze(freeze: FreezeConfig, causal: Any) -> None:
    causal.requires_grad_(False)
    name, layers = decoder_layers(causal)
    # by the modules themselves: a pattern such as ".2." would also find the second expert of every block
    for layer in list(layers)[len(layers) - freeze.last_layers :]:
        layer.requires_grad_(True)
    modules = dict(causal.named_modules())
    _refuse_unknown("freeze.modules", freeze.modules, list(modules))
    for pattern in freeze.modules:
        for name, module in modules.items():
            if matches(pattern, name):
                module.requires_grad_(True)


def matches(pattern: str, name: str) -> bool:
    """Whether a name, or its end after a dot, is what a user wrote; ``*`` and ``?`` as in file names."""
    return name != "" and (fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}"))


def _refuse_unknown(key: str, patterns: Iterable[str], names: list[str]) -> None:
    problems = []
    ends = sorted({name.split(".")[-1] for name in names if name and not name.split(".")[-1].isdigit()})
    for pattern in patterns:
        if not any(matches(pattern, name) for name in names):
            near = difflib.get_close_matches(pattern, ends, n=3, cutoff=0.5) or ends[:12]
            problems.append(f"{key}: {pattern!r} is no module of this model; there are {', '.join(near)}")
    if problems:
        raise ConfigError("\n".join(problems))
