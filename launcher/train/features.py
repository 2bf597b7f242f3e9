"""Features of torch newer than 2.1, the oldest that is supported: each with its first version and what is done instead.

All of them are asked for here and nowhere else; DCU_LAUNCH_WITHOUT (names, by commas) hides them, for tests.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature.

    Attributes:
        first: the version of torch that brought it.
        fallback: what is done without it.
    """

    name: str
    first: tuple[int, int]
    fallback: str


FEATURES = (
    Feature("fused_adamw_cpu", (2, 4), "the optimizer's ordinary loop over tensors"),
    Feature("fused_rms_norm", (2, 8), "norms run as the model's code says"),
    Feature("module_compile", (2, 5), "decoder blocks run as they are written"),
)


def has_feature(name: str) -> bool:
    """Whether this torch has a feature of the table."""
    import torch

    feature = next(feature for feature in FEATURES if feature.name == name)
    if name in os.environ.get("DCU_LAUNCH_WITHOUT", "").split(","):
        return False
    return torch_version(torch.__version__) >= feature.first


def torch_version(text: str) -> tuple[int, int]:
    """Major and minor of versions such as ``2.1.0a0+git793d2b5.abi0.dtk2310``."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def adamw_options(device: Any) -> dict[str, Any]:
    """Options of AdamW for a device; on cards torch's own choice is left as it is."""
    return {"fused": True} if device.type == "cpu" and has_feature("fused_adamw_cpu") else {}
