"""Attention over rows that lie one after another, without a mask: a varlen kernel under transformers' own seam.

Runs in every rank. torch's flash kernel takes the places where rows begin; where torch was built without it, the
package flash_attn does. Which works is found by a probe on the card against plain attention of each row by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: under this name transformers finds the function below
NAME = "dcu_launch_varlen"

Kernel = Callable[..., Any]
_kernels: dict[str, Kernel] = {}


def _torch_flash(query: Any, key: Any, value: Any, starts: Any, longest: int, scale: float) -> Any:
    import torch

    # differentiable itself since torch 2.1, which torch.nn.attention.varlen of 2.10 is not
    return torch.ops.aten._flash_attention_forward(
        query, key, value, starts, starts, longest, longest, 0.0, True, False, scale=scale
    )[0]


def _package_flash(query: Any, key: Any, value: Any, starts: Any, longest: int, scale: float) -> Any:
    from flash_attn import flash_attn_varlen_func

    return flash_attn_varlen_func(
        query, key, value, starts, starts, longest, longest, softmax_scale=scale, causal=True
    )


KERNELS: dict[str, Kernel] = {"torch's flash kernel": _torch_flash, "flash_attn": _package_flash}


def find_kernel(device: Any, dtype: Any) -> tuple[str, str]:
    """The first kernel that agrees with plain attention, forward and backward, and why others do not; "" for none."""
    import torch

    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "", "needs a card and 16 bits"
    problems = []
    for name, kernel in KERNELS.items():
        try:
            problem = probe(kernel, device, dtype)
        except Exception as error:  # a kernel may fail in any way
            problem = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        if not problem:
            return name, ""
        problems.append(f"{name}: {problem}")
    return "", "; ".join(problems)


def probe(kernel: Kernel, device: Any, dtype: Any) -> str:
    """What is wrong with a kernel: rows of 5 and 11 tokens, 4 heads sharing 2, held against sdpa row by row."""
    import torch

    torch_sdpa = torch.nn.functional.scaled_dot_product_attention
    query = torch.linspace(-1, 1, 16 * 4 * 64, device=device).sin().view(16, 4, 64).to(dtype)
    key, value = query[:, :2].flip(0).contiguous(), query[:, 2:].contiguous()
    leaves = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    starts = torch.tensor([0, 5, 16, 16], dtype=torch.int32, device=device)
    weight = torch.linspace(0, 1, 16, device=device)[:, None, None]
    found = kernel(*leaves, starts, 16, 0.125)
    ours = torch.autograd.grad((found.float() * weight).sum(), leaves)
    rows = []
    for begin, end in ((0, 5), (5, 16)):
        q, k, v = (leaf[begin:end].float().transpose(0, 1) for leaf in leaves)
        k, v = k.repeat_interleave(2, 0), v.repeat_interleave(2, 0)
        rows.append(torch_sdpa(q[None], k[None], v[None], is_causal=True, scale=0.125)[0].transpose(0, 1))
    expected = torch.cat(rows)
    theirs = torch.autograd.grad((expected * weight).sum(), leaves)
    for have, want in zip((found, *ours), (expected, *theirs), strict=True):
        size = float(want.detach().float().norm())
        if not float((have.detach().float() - want.detach().float()).norm()) <= 3e-2 * size:
            return "wrong result on this card"
    return ""


def register(kernel: Kernel) -> str:
    """Make a kernel known to transformers; raises ImportError or AttributeError where it has no such seam (below 4.48)."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    _kernels[NAME] = kernel
    return NAME


def attend(  # noqa: PLR0913  # transformers' own signature
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, dropout: float = 0.0,
    scaling: float | None = None, cu_seq_lens_q: Any = None, max_length_q: int = 0, **others: Any,
) -> tuple[Any, None]:  # fmt: skip
    """transformers' call of an attention function, [batch, heads, tokens, width] each; packed where starts are given.

    Raises NotImplementedError for what no varlen kernel here computes; ``is_honoured`` meets it before the first step.
    """
    import torch

    window = others.get("sliding_window")
    if others.get("softcap") is not None or others.get("s_aux") is not None:
        raise NotImplementedError("capped scores or attention sinks")
    if window is not None and window < (max_length_q or query.shape[2]):
        raise NotImplementedError("a window shorter than the rows")

    scale = float(scaling) if scaling is not None else query.shape[-1] ** -0.5
    if cu_seq_lens_q is not None:
        flat = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)]
        dtype = flat[2].dtype  # rotary places may have made query and key float32
        found = _kernels[NAME](*(t.to(dtype) for t in flat), cu_seq_lens_q, max_length_q, scale)
        return found.unflatten(0, (query.shape[0], query.shape[2])), None
    if key.shape[1] != query.shape[1]:
        key, value = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in (key, value))
    found = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, is_causal=attention_mask is None, scale=scale
    )
    return found.transpose(1, 2), None


def is_honoured(causal: Any, device: Any) -> bool:
    """Whether this model hands the places on to its attention: two rows packed must give what each gives by itself.

    Asked for the way it will be called: some versions of transformers lose the places where activations are computed twice.
    """
    import torch

    ids = torch.arange(1, 25, device=device)[None] % causal.config.vocab_size
    places = torch.tensor([[*range(9), *range(15)]], device=device)
    starts = torch.tensor([0, 9, 24], dtype=torch.int32, device=device)
    was_training = causal.training
    causal.train(bool(getattr(causal, "is_gradient_checkpointing", False)))
    try:
        with torch.no_grad():
            packed = causal(input_ids=ids, position_ids=places, use_cache=False, cu_seq_lens_q=starts,
                            cu_seq_lens_k=starts, max_length_q=24, max_length_k=24).logits.float()  # fmt: skip
            alone = causal(input_ids=ids[:, 9:], use_cache=False).logits.float()
    except (TypeError, NotImplementedError):  # a model of its own code that takes no further arguments
        return False
    finally:
        causal.train(was_training)
    return bool((packed[:, 9:] - alone).norm() <= 3e-2 * alone.norm())
