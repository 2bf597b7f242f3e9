"""What nodes said of the operators of training -> findings. Pure; runs on the head, for ``dcu-launch check --ops``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.preflight.finding import Finding, make_finding


def judge_operators(hosts: Sequence[str], operators: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """An operator that is wrong, fails or crashes: a warning each; one that is missing is shown and no finding."""
    found = []
    for host, held in zip(hosts, operators, strict=False):
        for row in held["rows"]:
            where = f"{host}: {row['name']} in {row['dtype']} on {row['device']}"
            if row["state"] == "wrong":
                found.append(make_finding("OPERATOR_WRONG", host, f"{where} is wrong: {row['detail']}"))
            elif row["state"] in ("failed", "crashed"):
                text = f"{where} {row['state']}: {row['detail']}"
                found.append(make_finding("OPERATOR_CRASHED", host, text))
        if held["error"]:
            text = f"{host}: the try-out of operators did not end well: {held['error']}"
            found.append(make_finding("TORCH_CHECK_INCOMPLETE", host, text))
    return found
