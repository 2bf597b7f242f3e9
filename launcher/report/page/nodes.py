"""Nodes with their versions and cards, and what preflight found on them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.report.page.markup import Markup, table, tag
from launcher.report.page.words import Words
from launcher.report.run_record import RunRecord

#: packages shown, in this order, where some node has them
_PACKAGES = ("torch", "accelerate", "transformers", "peft", "datasets", "deepspeed")


def show_nodes(record: RunRecord, words: Words) -> Markup | None:
    """One row a node; a cell that differs from most others is marked."""
    if not record.hosts:
        return None
    columns = _find_columns(record, words)
    rows = [[column(host) for column in columns.values()] for host in record.hosts]
    usual = [_most_common([row[index] for row in rows]) for index in range(len(columns))]
    shown = [
        [
            tag("td", text, class_="odd" if index >= _UNIQUE and text != usual[index] else None)
            for index, text in enumerate(row)
        ]
        for row in rows
    ]
    is_mixed = any(row[i] != usual[i] for row in rows for i in range(_UNIQUE, len(columns)))
    note = tag("p", words("nodes_note"), class_="muted") if is_mixed else None
    return tag("div", note, table(columns, shown))


#: columns that every node has for itself: its name and its ranks
_UNIQUE = 2


def _find_columns(record: RunRecord, words: Words) -> dict[str, Any]:
    ranks = _ranks_by_host(record.plan)
    columns: dict[str, Any] = {
        words("node"): lambda host: _name_host(host),
        words("ranks"): lambda host: ranks.get(str(host.get("name")), "\u2013"),
        words("cards"): lambda host: _name_cards(host, words),
        words("driver"): lambda host: _text(host.get("driver")),
        "DTK": lambda host: _text(host.get("dtk")),
        **{
            kind.upper(): (lambda host, kind=kind: _text(_library(host, kind).get("version")))
            for kind in ("rccl", "nccl", "hip")
            if any(_library(host, kind).get("version") for host in record.hosts)
        },
        "Python": lambda host: _text(host.get("python_version")),
    }
    for name in _PACKAGES:
        if any(_packages(host).get(name) for host in record.hosts):
            columns[name] = lambda host, name=name: _text(_packages(host).get(name))
    columns[words("kernel")] = lambda host: _text(host.get("kernel"))
    for title in (words("driver"), "DTK"):
        if all(columns[title](host) == "\u2013" for host in record.hosts):
            del columns[title]
    return columns


def _text(value: object) -> str:
    return "\u2013" if value in (None, "") else str(value)


def _most_common(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _name_host(host: Mapping[str, Any]) -> str:
    name, own = _text(host.get("name")), host.get("hostname")
    return f"{name} ({own})" if own and own != host.get("name") else name


def _packages(host: Mapping[str, Any]) -> Mapping[str, Any]:
    found = host.get("packages")
    return found if isinstance(found, Mapping) else {}


def _library(host: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = host.get("libraries")
    entry = found.get(kind) if isinstance(found, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def _name_cards(host: Mapping[str, Any], words: Words) -> str:
    cards = host.get("cards")
    names = Counter(
        str(card.get("model") or card.get("gfx") or words("unknown"))
        for card in (cards if isinstance(cards, list) else [])
        if isinstance(card, Mapping)
    )
    if names:
        return ", ".join(f"{count} \u00d7 {name}" for name, count in names.items())
    count = host.get("card_count")
    if count is None:
        return words("unknown")
    return words("no_cards") if not count else str(count)


def _ranks_by_host(plan: Mapping[str, Any]) -> dict[str, str]:
    found, first = {}, 0
    nodes = plan.get("nodes")
    for node in nodes if isinstance(nodes, list) else []:
        count = node.get("num_ranks") if isinstance(node, Mapping) else None
        if not isinstance(count, int):
            return {}
        found[str(node.get("host"))] = str(first) if count == 1 else f"{first}\u2013{first + count - 1}"
        first += count
    return found


def show_findings(record: RunRecord, words: Words) -> Markup | None:
    """One row a finding; None where preflight has not spoken."""
    if not record.findings:
        return tag("p", words("no_findings"), class_="muted") if record.hosts else None
    rows = []
    for finding in record.findings:
        level = str(finding.get("level"))
        level = "allowed" if finding.get("allowed") is True and level == "error" else level
        shown = words(level) if level in ("allowed", "error", "warning", "note") else level
        hosts = finding.get("hosts")
        rows.append([
            tag("span", shown, class_=f"level {level}"),
            tag("code", finding.get("code")),
            ", ".join(map(str, hosts)) if isinstance(hosts, list) else "",
            finding.get("message"),
            finding.get("cure"),
        ])  # fmt: skip
    return table([words(key) for key in ("level", "code", "node", "message", "cure")], rows, "prose")
