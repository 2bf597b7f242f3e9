"""What differs by version of torch (2.1 is the oldest that is supported) and of the training stack.

Each feature has its first version and what is done without it. Versions are compared here and nowhere else (a test sees
to it); DCU_LAUNCH_WITHOUT (names, by commas) hides features, for tests.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature.

    Attributes:
        first: the version of the package that brought it.
        fallback: what is done without it.
        package: whose version counts.
    """

    name: str
    first: tuple[int, int]
    fallback: str
    package: str = "torch"


FEATURES = (
    Feature("fused_adamw_cpu", (2, 4), "the optimizer's ordinary loop over tensors"),
    Feature(
        "dtype_word", (4, 56), "the precision of a model that is loaded is named torch_dtype", "transformers"
    ),
    Feature("fused_rms_norm", (2, 8), "norms run as the model's code says"),
    Feature("module_compile", (2, 5), "decoder blocks run as they are written"),
    Feature("recompile_limit", (2, 6), "the limit of compilations is named cache_size_limit"),
)


def has_feature(name: str) -> bool:
    """Whether the installed package has a feature of the table."""
    feature = next(feature for feature in FEATURES if feature.name == name)
    if name in os.environ.get("DCU_LAUNCH_WITHOUT", "").split(","):
        return False
    return major_minor(importlib.import_module(feature.package).__version__) >= feature.first


def major_minor(text: str) -> tuple[int, int]:
    """Major and minor of versions such as ``2.1.0a0+git793d2b5.abi0.dtk2310``."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def dtype_word() -> str:
    """The option of ``from_pretrained`` for the precision; newer ones of transformers warn of the old word."""
    return "dtype" if has_feature("dtype_word") else "torch_dtype"


def adamw_options(device: Any) -> dict[str, Any]:
    """Options of AdamW for a device; on cards torch's own choice is left as it is."""
    return {"fused": True} if device.type == "cpu" and has_feature("fused_adamw_cpu") else {}
