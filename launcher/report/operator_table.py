"""What nodes said of the operators of training -> a table, equal cards folded. Pure; runs on the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from launcher.hosts.target import fold_names

FORMATS = ("fp32", "fp16", "bf16")


def show_operators(hosts: Sequence[str], operators: Sequence[Mapping[str, Any]]) -> str:
    """One table for each kind of card behaviour, and what recipes choose there; empty without operators."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    choices: dict[tuple[Any, ...], dict[str, Any]] = {}
    for host, held in zip(hosts, operators, strict=False):
        for device in dict.fromkeys(row["device"] for row in held["rows"]):
            rows = {
                (row["name"], row["dtype"]): row["state"] for row in held["rows"] if row["device"] == device
            }
            chosen: Mapping[str, Any] = next(
                (choice for choice in held["choices"] if choice["device"] == device), {}
            )
            key = (*sorted(rows.items()), chosen.get("precision"), chosen.get("attention"))
            groups.setdefault(key, []).append(f"{host} {device}")
            choices[key] = {"rows": rows, **chosen}
    return "".join(_table(where, choices[key]) for key, where in groups.items())


def _table(where: Sequence[str], held: Mapping[str, Any]) -> str:
    names = list(dict.fromkeys(name for name, _ in held["rows"]))
    width = max(map(len, names))
    lines = [
        f"operators on {_fold(where)}",
        f"{''.ljust(width)}  " + "  ".join(kind.ljust(7) for kind in FORMATS),
    ]
    for name in names:
        cells = (held["rows"].get((name, kind), "?").ljust(7) for kind in FORMATS)
        lines.append(f"{name.ljust(width)}  {'  '.join(cells)}".rstrip())
    if held.get("precision"):
        lines.append(f"recipes choose {held['precision']} ({held['precision_why']}) "
                     f"and {held['attention']} attention ({held['attention_why']})")  # fmt: skip
    return "\n".join([*lines, "", ""])


def _fold(where: Sequence[str]) -> str:
    by_device: dict[str, list[str]] = {}
    for place in where:
        host, _, device = place.rpartition(" ")
        by_device.setdefault(device, []).append(host)
    by_hosts: dict[str, list[str]] = {}
    for device, hosts in by_device.items():
        by_hosts.setdefault(fold_names(hosts), []).append(device)
    return ", ".join(f"{hosts} {','.join(devices)}" for hosts, devices in by_hosts.items())


def show_bandwidths(
    bandwidths: Sequence[Mapping[str, Any]],
    inside: Mapping[str, float] = MappingProxyType({}),
    pairs: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Bus bandwidth of all-reduce by size, in the convention of rccl-tests: 2 (n - 1) / n of size / time; empty without.

    Args:
        inside: host -> GB/s between its own ranks.
        pairs: ``hosts`` and ``bus_gb_s`` of pairs of nodes.
    """
    if not bandwidths:
        return ""
    lines = [f"all-reduce over all ranks ({bandwidths[0]['backend']})", "      bytes     time us   bus GB/s"]
    lines += [
        f"{row['bytes']:11d} {row['seconds'] * 1e6:11.1f} {row['bus_gb_s']:10.3f}" for row in bandwidths
    ]
    if inside:
        lines.append("inside each node: " + ", ".join(f"{host} {rate:.3f}" for host, rate in inside.items()))
    if pairs:
        told = (f"{' - '.join(pair['hosts'])} {pair['bus_gb_s']:.3f}" for pair in pairs)
        lines.append("between pairs of nodes: " + ", ".join(told))
    return "\n".join([*lines, "", ""])
