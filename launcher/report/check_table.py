"""Comparisons and findings -> the text of ``dcu-launch check``: one table with equal nodes folded, findings, cures.

Pure; runs on the head. What differs from the majority bears a ``*`` and what is unknown a ``?``, so that no colour is
needed to understand it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.hosts.target import fold_names
from launcher.preflight.comparison import ABSENT, Comparison
from launcher.preflight.finding import Finding

#: more kinds of nodes than this are listed below each other instead of side by side
MAX_COLUMNS = 4
MAX_CELL = 44
Paint = Callable[[str, str], str]
_COLORS = {"error": "31", "warning": "33", "note": "36", "different": "31", "unknown": "33", "head": "1"}


def no_paint(text: str, kind: str) -> str:
    """Text as it is."""
    return text


def ansi_paint(text: str, kind: str) -> str:
    """Text in the colour of its kind."""
    return f"\x1b[{_COLORS[kind]}m{text}\x1b[0m"


def show_check(
    comparisons: Sequence[Comparison],
    hosts: Sequence[str],
    findings: Sequence[Finding],
    allowed: frozenset[str],
    paint: Paint = no_paint,
    missing: Sequence[str] = (),
) -> str:
    """The whole text.

    Args:
        hosts: names of nodes, in the order of the comparisons' values.
        allowed: codes that may pass.
        missing: hosts that did not answer.
    """
    shown = [result for result in comparisons if result.state != ABSENT]
    groups = group_nodes(shown, len(hosts))
    wide = len(groups) <= MAX_COLUMNS
    table = _columns(shown, groups, hosts, paint) if wide else _lists(shown, hosts, paint)
    absent = f"not checked, no answer: {fold_names(missing)}" if missing else ""
    return "\n".join([*table, "", *_findings(findings, allowed, paint, absent)]) + "\n"


def group_nodes(comparisons: Sequence[Comparison], count: int) -> list[list[int]]:
    """Nodes with the same values everywhere, the largest group first."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for node in range(count):
        groups.setdefault(tuple(result.values[node] for result in comparisons), []).append(node)
    return sorted(groups.values(), key=lambda nodes: (-len(nodes), nodes[0]))


def _columns(
    comparisons: Sequence[Comparison], groups: Sequence[Sequence[int]], hosts: Sequence[str], paint: Paint
) -> list[str]:
    heads = ["", *(_cut(_fold(hosts, nodes)) for nodes in groups)]
    rows = [[result.field.label, *(_cell(result, nodes[0]) for nodes in groups)] for result in comparisons]
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(len(heads))]
    lines = [_line(heads, widths, ["head"] * len(heads), paint)]
    for row, result in zip(rows, comparisons, strict=True):
        kinds = ["", *(_kind(result, nodes[0]) for nodes in groups)]
        lines.append(_line(row, widths, kinds, paint))
    return lines


def _line(cells: Sequence[str], widths: Sequence[int], kinds: Sequence[str], paint: Paint) -> str:
    padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
    padded[-1] = padded[-1].rstrip()
    return "  ".join(
        paint(cell, kind) if kind and cell.strip() else cell for cell, kind in zip(padded, kinds, strict=True)
    ).rstrip()


def _lists(comparisons: Sequence[Comparison], hosts: Sequence[str], paint: Paint) -> list[str]:
    width = max(len(result.field.label) for result in comparisons)
    lines = []
    for result in comparisons:
        values = dict.fromkeys(result.values)
        ordered = sorted(values, key=lambda value: (value != result.majority, value is None))
        for number, value in enumerate(ordered):
            nodes = [node for node, held in enumerate(result.values) if held == value]
            label = result.field.label if number == 0 else ""
            where = "" if len(ordered) == 1 else f"  on {_fold(hosts, nodes)}"
            kind, cell = _kind(result, nodes[0]), _cell(result, nodes[0])
            lines.append(f"{label.ljust(width)}  {paint(cell, kind) if kind else cell}{where}".rstrip())
    return lines


def _kind(result: Comparison, node: int) -> str:
    value = result.values[node]
    if value is None:
        return "unknown"
    return "" if value == result.majority else "different"


def _cell(result: Comparison, node: int) -> str:
    value = result.values[node]
    if value is None:
        return "?"
    return _cut(value) if value == result.majority else f"{_cut(value)} *"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[: MAX_CELL - 3] + "..."


def _fold(hosts: Sequence[str], nodes: Sequence[int]) -> str:
    return fold_names(hosts[node] for node in nodes)


def _findings(
    findings: Sequence[Finding], allowed: frozenset[str], paint: Paint, absent: str = ""
) -> list[str]:
    """Each finding once; the same words for several hosts are folded, and a cure stands below the last that it cures."""
    lines: list[str] = []
    counts = dict.fromkeys(("error", "warning", "note"), 0)
    for code, level in dict.fromkeys((finding.code, finding.level) for finding in findings):
        same = [finding for finding in findings if (finding.code, finding.level) == (code, level)]
        passed = " (allowed)" if code in allowed and level == "error" else ""
        messages = fold_messages(same)
        counts[level] += len(messages)
        lines += [f"{paint(level, level)} {code}{passed}: {message}" for message in messages]
        lines += [
            f"  cure: {cure}" for cure in dict.fromkeys(finding.cure for finding in same if finding.cure)
        ]
    told = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts.items() if count)
    last = "; ".join(filter(None, (told, absent))) or "all is well"
    return [*lines, *([""] if lines else []), last]


def fold_messages(findings: Sequence[Finding]) -> list[str]:
    """Messages, those that differ in the host's name alone as one with the names folded."""
    groups: dict[str, list[str]] = {}
    for finding in findings:
        host = finding.hosts[0] if len(finding.hosts) == 1 else ""
        plain = finding.message
        template = plain.replace(host, "\0", 1) if host and plain.startswith(host) else plain
        groups.setdefault(template, []).append(host)
    return [
        template.replace("\0", fold_names(hosts) if len(hosts) > 1 else hosts[0], 1)
        for template, hosts in groups.items()
    ]
