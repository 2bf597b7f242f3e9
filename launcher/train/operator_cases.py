"""The operators that training needs, each as a small case: device and format in, results and gradients out.

Inputs come from a seed and are rounded to what the smallest format holds, so that all formats compute the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

BATCH, LENGTH, HEADS, WIDTH, WORDS = 2, 32, 4, 16, 96

Case = Callable[[str, Any], "list[Any]"]


def _numbers(*shape: int, device: str, dtype: Any, seed: int = 0, scale: float = 1.0) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    values = (torch.randn(*shape, generator=generator) * scale).to(torch.bfloat16)
    return values.to(device=device, dtype=dtype).requires_grad_()


def _with_gradients(result: Any, *inputs: Any) -> list[Any]:
    import torch

    weights = torch.linspace(-1, 1, result.numel(), dtype=torch.float64).reshape(result.shape)
    (result * weights.to(device=result.device, dtype=result.dtype)).sum().backward()
    return [result, *(held.grad for held in inputs)]


def matmul(device: str, dtype: Any) -> list[Any]:
    """A product of two matrices."""
    left = _numbers(64, 128, device=device, dtype=dtype)
    right = _numbers(128, 48, device=device, dtype=dtype, seed=1)
    return _with_gradients(left @ right, left, right)


def embedding(device: str, dtype: Any) -> list[Any]:
    """Rows of a table by number, some more than once."""
    import torch

    table = _numbers(WORDS, 64, device=device, dtype=dtype)
    numbers = (torch.arange(BATCH * LENGTH) * 7 % 40).reshape(BATCH, LENGTH).to(device)
    return _with_gradients(torch.nn.functional.embedding(numbers, table), table)


def rms_norm(device: str, dtype: Any) -> list[Any]:
    """RMSNorm as Qwen and Llama write it: in float32 inside."""
    import torch

    rows = _numbers(BATCH, LENGTH, 64, device=device, dtype=dtype)
    weight = _numbers(64, device=device, dtype=dtype, seed=1)
    inner = rows if dtype == torch.float64 else rows.float()
    scaled = inner * torch.rsqrt(inner.pow(2).mean(-1, keepdim=True) + 1e-6)
    return _with_gradients(weight * scaled.to(dtype), rows, weight)


def rope(device: str, dtype: Any) -> list[Any]:
    """Rotary positions."""
    import torch

    heads = _numbers(BATCH, HEADS, LENGTH, WIDTH, device=device, dtype=dtype)
    steps = torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH
    angles = torch.outer(torch.arange(LENGTH, dtype=torch.float64), 10000.0**-steps).repeat(1, 2)
    cosine, sine = (values.to(device=device, dtype=dtype) for values in (angles.cos(), angles.sin()))
    half = WIDTH // 2
    turned = torch.cat((-heads[..., half:], heads[..., :half]), dim=-1)
    return _with_gradients(heads * cosine + turned * sine, heads)


def _query_key_value(device: str, dtype: Any) -> list[Any]:
    return [_numbers(BATCH, HEADS, LENGTH, WIDTH, device=device, dtype=dtype, seed=seed) for seed in range(3)]


def _block_mask(device: str) -> Any:
    """Three rows of one packed sequence: each sees itself and what is before it in its own row."""
    import torch

    rows = torch.tensor([0] * 10 + [1] * 15 + [2] * 7)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return ((rows[:, None] == rows[None, :]) & causal).to(device)


def sdpa_block_mask(device: str, dtype: Any) -> list[Any]:
    """torch's attention with the mask of a packed sequence."""
    import torch

    inputs = _query_key_value(device, dtype)
    attend = torch.nn.functional.scaled_dot_product_attention
    return _with_gradients(attend(*inputs, attn_mask=_block_mask(device)), *inputs)


def sdpa_causal(device: str, dtype: Any) -> list[Any]:
    """torch's attention, causal."""
    import torch

    inputs = _query_key_value(device, dtype)
    return _with_gradients(torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True), *inputs)


def eager_attention(device: str, dtype: Any) -> list[Any]:
    """Attention by products and a softmax in float32."""
    import torch

    query, key, value = inputs = _query_key_value(device, dtype)
    scores = (query @ key.transpose(-1, -2) / math.sqrt(WIDTH)).masked_fill(~_block_mask(device), -1e4)
    inner = scores if dtype == torch.float64 else scores.float()
    return _with_gradients(torch.softmax(inner, dim=-1).to(dtype) @ value, *inputs)


def flash_attention(device: str, dtype: Any) -> list[Any]:
    """The flash_attn package's kernel for rows of different lengths; torch's own attention is its reference."""
    import torch

    if dtype == torch.float64:
        return sdpa_block_mask(device, dtype)
    if device == "cpu":
        raise NotImplementedError("flash_attn needs a card")
    if dtype == torch.float32:
        raise NotImplementedError("flash_attn knows no fp32")
    try:
        from flash_attn import flash_attn_varlen_func
    except ImportError as error:
        raise NotImplementedError(f"flash_attn: {error}") from None
    inputs = _query_key_value(device, dtype)
    flat = [held.transpose(1, 2).reshape(BATCH * LENGTH, HEADS, WIDTH) for held in inputs]
    ends = torch.tensor([0, 10, 25, 32, 42, 57, 64], dtype=torch.int32, device=device)
    out = flash_attn_varlen_func(*flat, ends, ends, 15, 15, causal=True)
    return _with_gradients(out.reshape(BATCH, LENGTH, HEADS, WIDTH).transpose(1, 2), *inputs)


def cross_entropy(device: str, dtype: Any) -> list[Any]:
    """The loss of label positions, in float32 as training computes it, with positions that do not count."""
    import torch

    logits = _numbers(BATCH * LENGTH, WORDS, device=device, dtype=dtype, scale=2.0)
    labels = (torch.arange(BATCH * LENGTH) * 5 % WORDS).to(device)
    labels[::3] = -100
    inner = logits if dtype == torch.float64 else logits.float()
    loss = torch.nn.functional.cross_entropy(inner, labels, ignore_index=-100)
    loss.backward()
    return [loss, logits.grad]


def adamw(device: str, dtype: Any) -> list[Any]:
    """Three steps of torch's AdamW: weights that learn are float32, as in our recipes, gradients come through the format."""
    import torch

    learning = torch.float64 if dtype == torch.float64 else torch.float32
    weight = _numbers(64, 8, device=device, dtype=learning)
    start = weight.detach().double().cpu().clone()
    optimizer = torch.optim.AdamW([weight], lr=0.5, weight_decay=0.01)
    for step in range(3):
        optimizer.zero_grad()
        (weight.to(dtype) * (step + 1)).pow(2).sum().backward()
        optimizer.step()
    return [weight.detach().double().cpu() - start]


def checkpointing(device: str, dtype: Any) -> list[Any]:
    """A layer computed anew in the backward pass."""
    import torch
    from torch.utils.checkpoint import checkpoint

    rows = _numbers(BATCH, 64, device=device, dtype=dtype)
    weight = _numbers(64, 64, device=device, dtype=dtype, seed=1, scale=0.1)

    def layer(held: Any) -> Any:
        return torch.nn.functional.gelu(held @ weight)

    return _with_gradients(checkpoint(layer, rows, use_reentrant=False), rows, weight)


def compile_(device: str, dtype: Any) -> list[Any]:
    """A function that torch.compile has compiled."""
    import os

    import torch

    # workers of its own would outlive the child that is being tried
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

    def layer(left: Any, right: Any) -> Any:
        return torch.nn.functional.gelu(left * 1.5 + right).sum(-1)

    inputs = [_numbers(32, 64, device=device, dtype=dtype, seed=seed) for seed in range(2)]
    if dtype == torch.float64:
        return _with_gradients(layer(*inputs), *inputs)
    return _with_gradients(torch.compile(layer)(*inputs), *inputs)


OPERATORS: dict[str, Case] = {
    "matmul": matmul,
    "embedding": embedding,
    "rms_norm": rms_norm,
    "rope": rope,
    "sdpa_block_mask": sdpa_block_mask,
    "sdpa_causal": sdpa_causal,
    "eager_attention": eager_attention,
    "flash_attention": flash_attention,
    "cross_entropy": cross_entropy,
    "adamw": adamw,
    "checkpointing": checkpointing,
    "compile": compile_,
}
