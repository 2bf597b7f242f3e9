"""Card + wish -> number format and attention, each with the reason. Runs in every rank, before the model is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError
from launcher.train import attention


@dataclass(frozen=True, slots=True)
class Choice:
    """Something chosen, and why."""

    value: str
    reason: str


def choose_precision(wish: str, device: Any) -> Choice:
    """bf16 where a probe on the card says so, else fp16, else fp32; raises ConfigError for a wish that cannot be."""
    if device.type != "cuda":
        if wish == "fp16":
            raise ConfigError(
                "train.precision: fp16 needs a card; this rank runs on the CPU", "train.precision=fp32"
            )
        return Choice("fp32", "no card") if wish == "auto" else Choice(wish, "asked for")
    if wish == "fp32":
        return Choice(wish, "asked for")
    failures: list[str] = []
    for name in ("bf16", "fp16") if wish == "auto" else (wish,):
        problem = _probe(name, device)
        if not problem:
            why = "asked for" if wish != "auto" else "a probe on the card works"
            return Choice(name, f"{why}; {'; '.join(failures)}" if failures else why)
        failures.append(f"{name}: {problem}")
    if wish == "auto":
        return Choice("fp32", "; ".join(failures))
    raise ConfigError(f"train.precision: {'; '.join(failures)}", "train.precision=auto takes what works")


def _probe(name: str, device: Any) -> str:
    """What is wrong with a format on the card; empty when a product and its gradient are right."""
    import torch

    try:
        left = torch.full((16, 16), 0.5, dtype=torch_dtype(name), device=device, requires_grad=True)
        product = (left @ left).sum()
        product.backward()
        # 16 x 16 sums of 16 quarters; each number stands in 32 products with a half
        if float(product.detach()) != 1024.0 or float(left.grad[0, 0]) != 16.0:
            return "wrong result on this card"
    except (RuntimeError, TypeError) as error:
        return str(error).splitlines()[0]
    return ""


def torch_dtype(name: str) -> Any:
    """The torch dtype of a format's name."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]


def choose_attention(recipe: Recipe, device: Any, dtype: Any) -> Choice:
    """A varlen kernel where one works and rows are packed, else sdpa where a masked call works, else eager."""
    wish = recipe.model.attention
    if wish in ("auto", "varlen"):
        chosen = _choose_varlen(recipe, device, dtype)
        if chosen.value or wish == "varlen":
            return chosen
    if wish == "eager":
        return Choice(wish, "asked for")
    problem = _probe_sdpa(device, dtype)
    if not problem:
        return Choice("sdpa", "asked for" if wish == "sdpa" else "a probe works")
    if wish == "sdpa":
        raise ConfigError(f"model.attention: sdpa does not work here: {problem}", "model.attention=eager")
    return Choice("eager", f"sdpa: {problem}")


def _choose_varlen(recipe: Recipe, device: Any, dtype: Any) -> Choice:
    name, problem = "", "data.packing is off"
    if recipe.data.packing:
        name, problem = attention.find_kernel(device, dtype)
    if name:
        try:
            return Choice(attention.register(attention.KERNELS[name]), f"rows without a mask, by {name}")
        except (ImportError, AttributeError):
            problem = "transformers below 4.48 has no seam for it"
    if recipe.model.attention == "varlen":
        raise ConfigError(f"model.attention: no varlen kernel: {problem}", "model.attention=auto")
    return Choice("", problem)


def _probe_sdpa(device: Any, dtype: Any) -> str:
    import torch
    from transformers import utils

    # transformers 4 refuses it below torch 2.1.1, alphas of 2.1 among them; 5 asks no more
    if not getattr(utils, "is_torch_sdpa_available", lambda: True)():
        return f"transformers does not take it with torch {torch.__version__}"
    try:
        query = torch.ones(1, 2, 8, 64, dtype=dtype, device=device, requires_grad=True)
        mask = torch.zeros(1, 1, 8, 8, dtype=dtype, device=device)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
        if not bool(torch.isfinite(query.grad).all()):
            return "its gradient is not finite"
    except (RuntimeError, TypeError, AttributeError) as error:
        return str(error).splitlines()[0]
    return ""


def load_dtype(recipe: Recipe, precision: str) -> Any:
    """The format in which weights are read: all that learn are kept in float32, frozen ones as they compute."""
    return torch_dtype("fp32" if recipe.method == "full" else precision)
