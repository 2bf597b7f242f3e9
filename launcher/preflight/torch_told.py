"""What processes said of torch -> one dict a node, and the reports that hold it. Pure; runs on the head.

A process tells its facts one after another, so that one which dies has told what it knew and what it was trying.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.preflight.facts import read_told_torch
from launcher.preflight.report import NodeReport


def merge_torch_facts(facts: Sequence[Mapping[str, Any]], error: str) -> dict[str, Any]:
    """One dict of a process's facts; a card at which it died is one whose operation failed.

    Args:
        error: how the process ended, if not well.
    """
    merged: dict[str, Any] = {}
    operations: dict[str, str] = {}
    for fact in facts:
        operations.update(fact.get("operation") or {})
        merged.update({name: value for name, value in fact.items() if name != "operation"})
    trying = merged.pop("trying", None)
    if error and trying is not None and trying not in operations:
        operations[trying] = error
    elif error and not merged.get("error"):
        merged["error"] = error
    return {**merged, "operations": operations}


def merge_ranks(ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the ranks of one node said, as if one process had: whoever met an error speaks for all."""
    speaker = next((told for told in ranks if told.get("error")), ranks[0])
    operations = {card: what for told in ranks for card, what in told["operations"].items()}
    return {**speaker, "operations": operations}


def add_torch(reports: Sequence[NodeReport], told: Mapping[int, Mapping[str, Any]]) -> list[NodeReport]:
    """Reports of which those with something told hold it."""
    return [
        dataclasses.replace(report, torch=read_told_torch(told[node], report.torch))
        if node in told
        else report
        for node, report in enumerate(reports)
    ]
