"""A model ready to learn -> the same model, faster: light adapters, compiled decoder blocks or fused kernels, full packs.

Runs in every rank, after the model is on its device. Each step says what was chosen and why; what a probe refuses is left
as it was, and plain PyTorch remains.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError
from launcher.train import attention, kernels
from launcher.train.adapters import lighten
from launcher.train.features import has_feature
from launcher.train.model import decoder_layers
from launcher.train.pack import PackLimits, round_up

#: under compile a micro-batch is padded to a multiple of this: each length is compiled once
STATIC_TOKENS = 1024
#: compiling took 12 s on one H200 and saves that in about this many steps; beside liger's kernels in many more
WORTH_STEPS, WORTH_STEPS_BESIDE_LIGER = 200, 1000


def speed_up(recipe: Recipe, causal: Any, device: Any, dtype: Any, num_steps: int) -> list[str]:
    """Apply what the recipe asks for and the card can; what was chosen, a line each.

    Raises ConfigError for a wish that cannot be.
    """
    notes = []
    if (
        recipe.method == "lora"
        and recipe.lora.light
        and recipe.engine != "deepspeed"
        and (count := lighten(causal))
    ):
        notes.append(f"{count} adapters compute without casts")
    wish = recipe.train.compile
    problem = "asked for" if wish == "never" else why_not_compiled(recipe, causal, device, dtype, num_steps)
    if wish == "always" and problem:
        raise ConfigError(f"train.compile: {problem}", "train.compile=auto compiles where it works")
    if problem:
        notes.append(f"decoder blocks not compiled: {problem}")
    else:
        compile_blocks(causal)
        notes.append("decoder blocks compiled: " + ("asked for" if wish == "always" else "a probe works"))
    return [*notes, choose_kernels(recipe, causal, device, dtype, is_compiled=not problem)]


def choose_kernels(recipe: Recipe, causal: Any, device: Any, dtype: Any, is_compiled: bool) -> str:
    """Put fused kernels into the model, as the recipe asks or as a probe finds them; a line that says which."""
    wish = recipe.train.kernels
    if wish == "model" or (wish == "auto" and is_compiled):
        return "kernels the model's own: " + ("asked for" if wish == "model" else "the compiler fuses them")
    if wish == "liger" and is_compiled:
        raise ConfigError(
            "train.kernels: liger inside compiled blocks hides from the compiler", "train.compile=never"
        )
    if wish in ("auto", "liger"):
        problem = kernels.why_not_liger(causal, device, dtype) or kernels.apply_liger(causal)
        if not problem:
            return "kernels liger: " + ("asked for" if wish == "liger" else "a probe works")
        if wish == "liger":
            raise ConfigError(f"train.kernels: liger: {problem}", "train.kernels=auto takes what works")
    else:
        problem = "asked for"
    norms = kernels.fuse_norms(causal, dtype) if has_feature("fused_rms_norm") else 0
    gates = kernels.fuse_gates(causal, dtype)
    return f"kernels torch's own, {norms} norms fused, {gates} gates lean: {problem}"


def why_not_compiled(recipe: Recipe, causal: Any, device: Any, dtype: Any, num_steps: int) -> str:
    """Why the decoder blocks should not be compiled; empty when they should."""
    if not has_feature("module_compile"):
        return "this torch is older than 2.5"
    if recipe.engine == "deepspeed":
        return "DeepSpeed gathers weights inside the blocks"
    experts = ("num_experts", "num_local_experts", "n_routed_experts")
    if any(getattr(causal.config, name, None) for name in experts):
        return "a model of experts has no static shapes"
    if recipe.train.compile == "always":
        return ""
    if device.type != "cuda":
        return "no card"
    if num_steps < WORTH_STEPS:
        return f"not worth it for {num_steps} steps"
    is_short = num_steps < WORTH_STEPS_BESIDE_LIGER and recipe.train.kernels in ("auto", "liger")
    if is_short and not kernels.why_not_liger(causal, device, dtype):
        return f"not worth it for {num_steps} steps beside liger's kernels"
    return _probe_compile(device)


def _probe_compile(device: Any) -> str:
    import torch

    try:
        numbers = torch.ones(64, 64, device=device, requires_grad=True)
        torch.compile(lambda x: (x.sin() + x).sum(), dynamic=False)(numbers).backward()
        expected = 1 + float(torch.ones(()).cos())
        if not abs(float(numbers.grad[0, 0]) - expected) < 1e-4:
            return "a compiled gradient is wrong on this card"
    except Exception as error:  # no Triton, no C compiler, no support of the card
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]
    return ""


def compile_blocks(causal: Any) -> None:
    """Compile each decoder block with static shapes; their code is one, so that it is compiled once a shape."""
    import torch

    limit = "recompile_limit" if has_feature("recompile_limit") else "cache_size_limit"
    setattr(torch._dynamo.config, limit, 64)  # lengths, training and evaluating, first and later blocks
    for block in decoder_layers(causal)[1]:
        block.compile(dynamic=False)


def fit_limits(limits: PackLimits, causal: Any, device: Any, longest: int) -> PackLimits:
    """How rows are packed for what the model now is: one sequence under a varlen kernel, static lengths if compiled.

    Args:
        longest: tokens of the longest row of this run.
    """
    is_varlen = causal.config._attn_implementation == attention.NAME and limits.packing
    is_compiled = any(getattr(block, "_compiled_call_impl", None) for block in decoder_layers(causal)[1])
    unit = STATIC_TOKENS if is_compiled else 8 if device.type == "cuda" else 1
    length = limits.max_tokens if is_varlen else limits.sequence_length
    if is_compiled and length >= unit:
        down = length // unit * unit
        length = down if down >= longest else round_up(length, unit)
    return dataclasses.replace(
        limits, unit=unit, longest=longest if is_varlen else 0, sequence_length=length
    )  # fmt: skip


def settle_attention(causal: Any, device: Any) -> str:
    """Go back to sdpa where a model keeps the places of rows from its attention; a line about it, or nothing."""
    if causal.config._attn_implementation != attention.NAME or attention.is_honoured(causal, device):
        return ""
    causal.set_attn_implementation("sdpa")
    return "attention sdpa after all: this model does not tell its attention where rows begin"
