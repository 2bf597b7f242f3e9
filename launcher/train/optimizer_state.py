"""AdamW's state <-> named tensors, so that a checkpoint needs no pickle. Runs in every rank.

Rank 0 alone has the files; the others get the numbers over the process group, so that a run folder need not be
shared by the nodes.
"""

from __future__ import annotations

from typing import Any

import torch

from launcher.train.world import broadcast

_MOMENTS = ("exp_avg", "exp_avg_sq")


def named_trainable(causal: Any) -> dict[str, Any]:
    """What learns, by its name in the model."""
    return {name: p for name, p in causal.named_parameters() if p.requires_grad}


def collect_moments(optimizer: Any, trainable: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The moments as ``name|exp_avg`` tensors, and how many steps they have seen."""
    tensors, steps = {}, 0
    for name, parameter in trainable.items():
        state = optimizer.state.get(parameter)
        if state:
            steps = int(state["step"])
            tensors.update({f"{name}|{moment}": state[moment] for moment in _MOMENTS})
    return tensors, steps


def restore(
    optimizer: Any,
    trainable: dict[str, Any],
    weights: dict[str, Any] | None,
    moments: dict[str, Any] | None,
    steps: int,
) -> None:
    """Give every rank the weights and moments that rank 0 read; the others pass None for both."""
    state: dict[Any, dict[str, Any]] = {}
    for name, parameter in trainable.items():
        found = None if weights is None else weights[name]
        parameter.data.copy_(_share(found, parameter))
        if steps:
            state[parameter] = {"step": torch.tensor(float(steps))}
            for moment in _MOMENTS:
                found = None if moments is None else moments[f"{name}|{moment}"]
                state[parameter][moment] = _share(found, parameter)
    numbers = {p: i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    # through load_state_dict, which knows where this optimizer wants its step to live
    optimizer.load_state_dict(
        {
            "state": {numbers[p]: values for p, values in state.items()},
            "param_groups": optimizer.state_dict()["param_groups"],
        }
    )


def _share(found: Any, like: Any) -> Any:
    value = torch.empty_like(like.data) if found is None else found.to(like.device, like.dtype)
    broadcast(value)
    return value
