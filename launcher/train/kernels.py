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
    try:
        found = []
        for forward in (module, lambda x: _fused_norm(x, module.weight, module.variance_epsilon)):
            leaf = numbers.clone().requires_grad_()
            result = forward(leaf)
            (slope,) = torch.autograd.grad((result.float() * numbers.float().cos()).sum(), leaf)
            found.append((result.detach().float(), slope.float()))
    except (RuntimeError, TypeError):  # no kernel for this card or format
        return False
    return all(_is_near(ours, theirs, dtype) for theirs, ours in zip(*found, strict=True))


def _is_near(ours: Any, theirs: Any, dtype: Any) -> bool:
    return bool((ours - theirs).norm() <= TOLERANCE[dtype] * theirs.norm())


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
    pairs = (
        (lambda x: norm(x), lambda x: torch.nn.functional.rms_norm(x, (256,), norm.weight, 1e-6)),
        (lambda x: LigerSiLUMulFunction.apply(x, numbers), lambda x: torch.nn.functional.silu(x) * numbers),
    )
    for theirs, plain in pairs:
        results = []
        for function in (theirs, plain):
            leaf = numbers.clone().requires_grad_()
            result = function(leaf.clone())  # a clone: these kernels may write over what they were given
            results.append(
                (result.detach().clone().float(), torch.autograd.grad(result.sum(), leaf)[0].float())
            )
        if not all(_is_near(ours, wanted, dtype) for ours, wanted in zip(*results, strict=True)):
            return "a wrong result on this card"
    return ""


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
    return "" if bool((after - before).norm() <= 3e-2 * before.norm()) else "other logits than without it"
