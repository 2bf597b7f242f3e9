"""Source -> model with its adapter, and tokenizer, ready to answer. Runs on one card or on the CPU, outside of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.base.config import ModelConfig, Recipe, TrainConfig
from launcher.base.errors import ConfigError, UsageError
from launcher.train.main import import_stack
from launcher.train.model import load_model, load_model_config, load_tokenizer
from launcher.train.precision import choose_attention, torch_dtype
from launcher.train.source import Source


def import_training_stack() -> None:
    """Import torch and its relatives; raises UsageError that says what this interpreter has not."""
    import sys

    try:
        import_stack()
    except ImportError as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise UsageError(
            f"{sys.executable} cannot import the training stack: {lines[0]}",
            "--python PATH names an interpreter that can; on a DCU node, source DTK's env.sh first",
        ) from None


def pick_card(cpu: bool = False) -> Any:
    """The first card that is visible, else the CPU."""
    import torch

    return torch.device("cuda", 0) if torch.cuda.is_available() and not cpu else torch.device("cpu")


def load_source(
    source: Source, device: Any, precision: str, trust_remote_code: bool = False
) -> tuple[Any, Any]:
    """The model, with what was learnt around or over it, in evaluation mode, and its tokenizer.

    Args:
        precision: ``bf16``, ``fp16`` or ``fp32``.

    Raises:
        ConfigError: something of it cannot be read, or the adapter does not fit onto the base.
    """
    recipe = Recipe(
        model=ModelConfig(path=source.base, trust_remote_code=trust_remote_code),
        train=TrainConfig(seed=source.seed),
    )
    tokenizer = load_tokenizer(source.base, trust_remote_code)
    dtype = torch_dtype(precision)
    attention = choose_attention(recipe, device, dtype).value
    model = load_model(recipe, load_model_config(recipe, tokenizer), dtype, attention)
    if source.adapter is not None:
        model = add_adapter(model, source.adapter)
    if source.learnt is not None:
        lay_over(model, source.learnt)
    return model.to(device).eval(), tokenizer


def add_adapter(model: Any, adapter: Path) -> Any:
    """The model inside peft's wrapper; raises ConfigError when the adapter is not whole or does not fit."""
    from peft import PeftModel

    try:
        return PeftModel.from_pretrained(model, str(adapter))
    except (RuntimeError, ValueError, OSError, KeyError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = next((line for line in lines if "size mismatch" in line), (lines or [type(error).__name__])[0])
        raise ConfigError(f"{adapter}: does not fit onto its base: {told[:300]}") from None


def lay_over(model: Any, file: Path) -> None:
    """Give the model the tensors of a checkpoint in place of its own; raises ConfigError where they do not fit."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        learnt = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: cannot be read: {error}") from None
    own = dict(model.named_parameters())
    wrong = [name for name, tensor in learnt.items() if name not in own or own[name].shape != tensor.shape]
    if wrong:
        raise ConfigError(
            f"{file}: does not fit onto its base: {len(wrong)} of {len(learnt)} tensors, {wrong[0]} first"
        )
    with torch.no_grad():
        for name, tensor in learnt.items():
            own[name].copy_(tensor)
