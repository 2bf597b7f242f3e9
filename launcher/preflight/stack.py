"""Which training stack goes with an installed torch: the table ``data/stacks.json`` and its look-ups. Pure; on the head."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.preflight.version import compare_numbers, read_numbers

TABLE = Path(__file__).resolve().parent / "data" / "stacks.json"
# the pattern of PEP 440's appendix, less what no wheel of this field has (epochs, post releases by a dash)
_PEP_440 = re.compile(
    r"\d+(\.\d+)*([._-]?(a|b|c|rc|alpha|beta|pre|preview)[._-]?\d*)?([._-]?(post|rev|r)[._-]?\d*)?([._-]?dev[._-]?\d*)?"
    r"(\+[a-z0-9]+([._-][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_BEFORE_RELEASE = re.compile(r"\d+(\.\d+)*[._-]?(a|b|c|rc|alpha|beta|pre|preview|dev)", re.IGNORECASE)
_BOUND = re.compile(r"(>=|<=|<)([\d.]+)")


@dataclass(frozen=True, slots=True)
class Pin:
    """One package beside the stack.

    Attributes:
        version: what to install where it is missing or will not do.
        accepts: bounds of an installed one that may stay, ``>=2,<4``; empty: any.
        wanted_by: the only package that needs it, in a version to fit: where that one stays, so does this; or empty.
    """

    version: str
    accepts: str = ""
    wanted_by: str = ""


@dataclass(frozen=True, slots=True)
class Stack:
    """The newest training stack for a range of torch.

    Attributes:
        why: what keeps newer releases out.
        tried: on which torch and Python it trained.
        packages: versions by name.
        beside: what these packages need.
    """

    torch_from: str
    torch_below: str | None
    python_from: str
    why: str
    tried: str
    packages: Mapping[str, str]
    beside: Mapping[str, Pin]


@cache
def read_stacks() -> tuple[Stack, ...]:
    """All rows of the table, newest first."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(_read_stack(row, table["beside"]) for row in table["stacks"])


def _read_stack(row: Mapping[str, Any], families: Mapping[str, Any]) -> Stack:
    beside = {name: Pin(*pin) for family in row["beside"] for name, pin in families[family].items()}
    return Stack(**{**row, "beside": beside})


def choose_stack(torch: str, python: tuple[int, int]) -> Stack | None:
    """The newest stack for this version of torch, in whatever spelling, and this Python; None where there is none."""
    for stack in read_stacks():
        if read_numbers(stack.python_from) > python or is_older(torch, stack.torch_from):
            continue
        if stack.torch_below is None or is_older(torch, stack.torch_below):
            return stack
    return None


def is_older(version: str, release: str) -> bool:
    """Whether a version comes before a release, as pip and transformers see it: 2.1.0a0+git793d2b5 is older than 2.1."""
    order = compare_numbers(read_numbers(version), read_numbers(release))
    return order < 0 or (order == 0 and _BEFORE_RELEASE.match(version) is not None)


def is_pep440(version: str) -> bool:
    """Whether pip can read this version; it refuses wheels of DAS 1.0 with their two ``+``."""
    return _PEP_440.fullmatch(version) is not None


def is_accepted(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as ``>=2,<4``."""
    for sign, limit in _BOUND.findall(bounds):
        if sign == ">=" and is_older(version, limit):
            return False
        if sign == "<" and not is_older(version, limit):
            return False
        if sign == "<=" and compare_numbers(read_numbers(version), read_numbers(limit)) > 0:
            return False
    return True
