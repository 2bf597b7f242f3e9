"""Norms and activations of a model in fewer kernels: liger's, or torch's own. Runs in every rank, before the first step.

Compiled blocks need neither: there the compiler fuses what the model's code says.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

#: how far a fused result may be from the model's own, relative to its norm
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}

#: a model's class of norms -> the class that takes its place
_classes: dict[Any, Any] = {}


def fuse_norms(causal: Any, dtype: Any) -> int:
    """Let RMS norms use torch's fused kernel where it gives what the model's own code gives; how many do."""
    agreed: dict[Any, bool] = {}
    count = 0
    for module in causal.modules():
        kind = type(module)
        if not kind.__name__.endswith("RMSNorm") or not hasattr(module, "variance_epsilon"):
            continue
        if getattr(module.weight, "ndim", 0) != 1 or hasattr(module.weight, "ds_id"):
            continue
        if kind not in agreed:
            agreed[kind] = _agrees(module, dtype)
        if agreed[kind]:
            # by the class: compiling and hooks see an ordinary module
            module.__class__ = _fused_class(kind)
            count += 1
    return count


def _fused_class(kind: Any) -> Any:
    if kind in _classes:
        return _classes[kind]

    class FusedNorm(kind):
        """A model's RMS norm with another forward pass."""

        def forward(self, hidden_states: Any) -> Any:
            return _fused_norm(hidden_states, self.weight, self.variance_epsilon)

    _classes[kind] = FusedNorm
    return FusedNorm


def _fused_norm(hidden: Any, weight: Any, epsilon: float) -> Any:
    with torch.autocast(hidden.device.type, enabled=False):
        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), weight.to(hidden.dtype), epsilon)


def _agrees(module: Any, dtype: Any) -> bool:
    size = module.weight.numel()
    device = module.weight.device
    numbers = torch.linspace(-3, 3, 3 * size, device=device).sin().view(3, size).to(dtype)
    return _same(module, lambda x: _fused_norm(x, module.weight, module.variance_epsilon), numbers, dtype)


def _same(theirs: Any, ours: Any, numbers: Any, dtype: Any) -> bool:
    """Whether two functions agree in result and gradient; False where one of them cannot be computed here."""
    try:
        found = []
        for function in (theirs, ours):
            # copies: some kernels write over what they were given
            leaf = numbers.clone().requires_grad_()
            result = function(leaf * 1)
            weighed = (
                result.float() * torch.linspace(-1, 1, result.numel(), device=result.device).view_as(result)
            ).sum()
            found.append((result.detach().float(), torch.autograd.grad(weighed, leaf)[0].float()))
    except (RuntimeError, TypeError, AttributeError):  # no kernel for this card or format
        return False
    return all(_is_near(mine, wanted, dtype) for wanted, mine in zip(*found, strict=True))


def _is_near(ours: Any, theirs: Any, dtype: Any) -> bool:
    return bool((ours - theirs).norm() <= TOLERANCE[dtype] * theirs.norm())


class _SiluGate(torch.autograd.Function):
    """silu(gate) * up that keeps these two alone for the way back: a third less memory for a block's activations."""

    @staticmethod
    def forward(ctx: Any, gate: Any, up: Any) -> Any:
        ctx.save_for_backward(gate, up)
        return torch.nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *slopes: Any) -> Any:
        gate, up = ctx.saved_tensors
        slope_up = torch.nn.functional.silu(gate).mul_(slopes[0])
        return torch.ops.aten.silu_backward(slopes[0] * up, gate), slope_up


def fuse_gates(causal: Any, dtype: Any) -> int:
    """Let gated perceptrons keep fewer activations where that gives what the model's own code gives; how many do."""
    agreed: dict[Any, bool] = {}
    count = 0
    for module in causal.modules():
        kind = type(module)
        if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
            continue
        if kind not in agreed:
            agreed[kind] = _gate_agrees(module, dtype)
        if agreed[kind]:
            module.__class__ = _gated_class(kind)
            count += 1
    return count


def _run_gated(module: Any, x: Any) -> Any:
    return module.down_proj(_SiluGate.apply(module.gate_proj(x), module.up_proj(x)))


def _gated_class(kind: Any) -> Any:
    if kind in _classes:
        return _classes[kind]

    class LeanGated(kind):
        """A model's gated perceptron with another forward pass."""

        def forward(self, x: Any) -> Any:
            return _run_gated(self, x)

    _classes[kind] = LeanGated
    return LeanGated


def _gate_agrees(module: Any, dtype: Any) -> bool:
    weight = module.down_proj.weight
    if hasattr(weight, "ds_id") or type(module.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        return False
    numbers = torch.linspace(-3, 3, 3 * weight.shape[0], device=weight.device).sin().view(3, -1).to(dtype)
    return _same(module, lambda x: _run_gated(module, x), numbers, dtype)


def why_not_liger(causal: Any, device: Any, dtype: Any) -> str:
    """Why liger's kernels cannot be used; empty when they can."""
    if device.type != "cuda":
        return "no card"
    try:
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN as known
    except ImportError as error:
        return f"liger-kernel cannot be imported ({error})"
    if causal.config.model_type not in known:
        return f"liger-kernel has none for {causal.config.model_type}"
    try:
        return _probe_liger(device, dtype)
    except Exception as error:  # Triton fails in many ways
        return f"{type(error).__name__}: {error}".splitlines()[0][:160]


def _probe_liger(device: Any, dtype: Any) -> str:
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    from liger_kernel.transformers.rms_norm import LigerRMSNorm

    norm = LigerRMSNorm(256).to(device, dtype)
    numbers = torch.linspace(-3, 3, 4 * 256, device=device).sin().view(4, 256).to(dtype)
    norms = norm, lambda x: torch.nn.functional.rms_norm(x, (256,), norm.weight, 1e-6)
    gates = (
        lambda x: LigerSiLUMulFunction.apply(x, numbers.clone()),
        lambda x: torch.nn.functional.silu(x) * numbers,
    )
    wrong = [
        name
        for name, (theirs, plain) in (("norm", norms), ("gate", gates))
        if not _same(plain, theirs, numbers, dtype)
    ]
    return f"a wrong {' and '.join(wrong)} on this card" if wrong else ""


def apply_liger(causal: Any) -> str:
    """Give a model liger's kernels and see that it still says the same; what is wrong if it does not."""
    from liger_kernel.transformers import _apply_liger_kernel_to_instance

    device = causal.get_input_embeddings().weight.device
    ids = torch.arange(1, 25, device=device)[None] % causal.config.vocab_size
    was_training = causal.training
    causal.eval()
    logging.getLogger("liger_kernel").setLevel(logging.WARNING)
    try:
        with torch.no_grad():
            before = causal(input_ids=ids, use_cache=False).logits.float()
            # losses are ours: sums over label places, with a frozen head's gradient in the same pass
            _apply_liger_kernel_to_instance(
                causal,
                rope=True,
                rms_norm=True,
                swiglu=True,
                cross_entropy=False,
                fused_linear_cross_entropy=False,
            )
            after = causal(input_ids=ids, use_cache=False).logits.float()
    finally:
        causal.train(was_training)
        # a wrong kernel is off by far more than the rounding of many blocks
    return "" if bool((after - before).norm() <= 0.1 * before.norm()) else "other logits than without it"
