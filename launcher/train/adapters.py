"""peft's LoRA layers without their casts: the same sums in fewer passes over memory. Runs in every rank.

peft turns what comes in to the adapters' float32 and back at each call, and adds with two kernels more. Here the small
matrices take the format of the large ones instead, and the addition is part of the last product.
"""

from __future__ import annotations

import functools
from typing import Any

import torch


def lighten(causal: Any) -> int:
    """Give plain LoRA layers over linear ones the short way; how many there were. Saving and loading stay peft's."""
    from peft.tuners.lora import Linear

    count = 0
    for module in causal.modules():
        if type(module) is Linear and _is_plain(module):
            # by the class and not by a forward of each object's own: then compiled blocks share one graph
            module.__class__ = _light_class()
            count += 1
    return count


def _is_plain(layer: Any) -> bool:
    names = list(layer.lora_A)
    return (
        len(names) == 1
        and list(layer.active_adapters) == names
        and type(layer.base_layer) is torch.nn.Linear
        and not getattr(layer, "lora_variant", {})  # DoRA and its like
        and not any(getattr(layer, "use_dora", {}).values())
        and layer.lora_B[names[0]].bias is None
        and not layer.merged
    )


@functools.cache
def _light_class() -> Any:
    from peft.tuners.lora import Linear

    class LightLinear(Linear):
        """peft's layer with another forward pass."""

        def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
            if self.disable_adapters or self.merged or kwargs.get("adapter_names"):
                return super().forward(x, *args, **kwargs)
            name = self.active_adapters[0]
            result = self.base_layer(x)
            down, up = self.lora_A[name].weight, self.lora_B[name].weight
            small = torch.nn.functional.linear(
                self.lora_dropout[name](x).to(result.dtype), down.to(result.dtype)
            )
            total = torch.addmm(
                result.flatten(0, -2), small.flatten(0, -2), up.to(result.dtype).t(), alpha=self.scaling[name]
            )
            return total.view(result.shape)

    return LightLinear
