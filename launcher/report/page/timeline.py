"""Events of a run -> its timeline: starts, failures, saves, warnings; equal events of many ranks are one row. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.report.figures import format_seconds
from launcher.report.fold import format_ranks
from launcher.report.page.markup import Markup, table, tag
from launcher.report.page.scale import Scale
from launcher.report.page.words import Words
from launcher.report.run_record import RunRecord, number

#: rows of the table at most: of a run that says more, the first and the last
MAX_ROWS = 120
#: kinds that many ranks have at the same time
_FOLDED = frozenset({"rank_started", "rank_ready", "rank_exit", "note"})
#: kinds with a mark on the strip, and the class of the mark
_MARKS: Mapping[str, str] = {
    "start": "start", "retry": "start", "first_step": "start", "rank_failed": "fail", "node_lost": "fail",
    "stop": "fail", "checkpoint": "save", "result": "save", "warning": "warn", "end": "end",
}  # fmt: skip


@dataclass(slots=True)
class Entry:
    """A row of the timeline.

    Attributes:
        kind: of the event; ``first_step`` and ``rank_failed`` are read out of others.
        ranks: whom it concerns; ``host`` is empty for several.
    """

    time: float
    kind: str
    text: str
    host: str = ""
    ranks: list[int] = field(default_factory=list)


def show_timeline(record: RunRecord, words: Words) -> Markup | None:
    """A strip of marks and a table; None without an event that has a time."""
    entries = list_entries(record)
    if not entries:
        return None
    begun = entries[0].time
    rows = [
        [
            format_seconds(entry.time - begun),
            time.strftime("%H:%M:%S", time.localtime(entry.time)),
            tag("span", _name(entry.kind, words), class_=f"mark {_MARKS.get(entry.kind, '')}"),
            _name_place(entry),
            entry.text,
        ]
        for entry in entries
    ]
    more = None
    if len(rows) > MAX_ROWS:
        more = tag("p", words("left_out").format(count=len(rows) - MAX_ROWS), class_="muted")
        rows = [*rows[: MAX_ROWS // 2], *rows[-MAX_ROWS // 2 :]]
    head = [words(key) for key in ("after", "clock", "what", "where", "more")]
    return tag("div", _draw_strip(entries, words), table(head, rows, "prose timeline"), more)


def list_entries(record: RunRecord) -> list[Entry]:
    """The rows of the timeline, in order of time."""
    entries: list[Entry] = []
    for event in record.events:
        when, kind = number(event.get("time")), event.get("kind")
        if when is None or not 0 < when < 4e9 or not isinstance(kind, str) or kind == "metric":
            continue
        data = event.get("data")
        entry = _read_entry(event, when, kind, data if isinstance(data, Mapping) else {})
        if not _folded_into(entries, entry):
            entries.append(entry)
    first = next((number(row.get("time")) for row in record.metrics if row.get("step") == 1), None)
    if first is not None and entries:
        entries.append(Entry(first, "first_step", ""))
    return sorted(entries, key=lambda entry: entry.time)


def _read_entry(event: Mapping[str, Any], when: float, kind: str, data: Mapping[str, Any]) -> Entry:
    rank = event.get("rank")
    if kind == "rank_exit" and data.get("status") != 0:
        kind = "rank_failed"
    return Entry(
        when,
        kind,
        _describe(event, kind, data),
        str(event.get("host") or ""),
        [rank] if isinstance(rank, int) else [],
    )


def _describe(event: Mapping[str, Any], kind: str, data: Mapping[str, Any]) -> str:
    if kind == "start":
        hosts = data.get("hosts")
        named = ", ".join(map(str, hosts)) if isinstance(hosts, list) else ""
        return f"{data.get('target', '')} \u2192 {named}" if named else str(data.get("target", ""))
    if kind == "rank_failed":
        status = data.get("status")
        return f"signal {-status}" if isinstance(status, int) and status < 0 else f"exit {status}"
    if kind in ("checkpoint", "result"):
        step = event.get("step")
        place = str(data.get("path", ""))
        return f"{f'step {step}: ' if step is not None else ''}{place.rpartition('/')[2] or place}"
    if kind == "end":
        return f"{data.get('kind', '')}, exit {data.get('exit', '?')}"
    if kind in ("rank_started", "rank_ready", "rank_exit"):
        return ""
    return str(data.get("message") or data.get("why") or data.get("asked_by") or data.get("signal") or "")


def _folded_into(entries: Sequence[Entry], entry: Entry) -> bool:
    """Whether the event is like one of the last rows, and was added to it."""
    if entry.kind not in _FOLDED:
        return False
    for last in reversed(entries[-8:]):
        if (last.kind, last.text) == (entry.kind, entry.text) and entry.ranks:
            last.ranks += entry.ranks
            last.host = last.host if last.host == entry.host else ""
            return True
    return False


def _name(kind: str, words: Words) -> str:
    try:
        return words(f"ev_{kind}")
    except KeyError:
        return kind


def _name_place(entry: Entry) -> str:
    ranks = f"rank {format_ranks(entry.ranks)}" if entry.ranks else ""
    return f"{entry.host} {ranks}".strip()


def _draw_strip(entries: Sequence[Entry], words: Words) -> Markup | None:
    begun, ended = entries[0].time, entries[-1].time
    if ended <= begun:
        return None
    place = Scale(begun, ended, 14, 846)
    marks = []
    for entry in entries:
        look = _MARKS.get(entry.kind)
        if look is None:
            continue
        title = f"{format_seconds(entry.time - begun)} {_name(entry.kind, words)} {_name_place(entry)} {entry.text}"
        marks.append(
            tag(
                "circle",
                tag("title", title.strip()),
                class_=f"mark {look}",
                cx=f"{place(entry.time):.1f}",
                cy=16,
                r=5.5,
            )
        )
    return tag(
        "svg",
        tag("line", class_="axis", x1=14, x2=846, y1=16, y2=16),
        marks,
        tag("text", "0", class_="tick", x=14, y=38),
        tag("text", format_seconds(ended - begun), class_="tick end", x=846, y=38),
        viewBox="0 0 860 44",
        role="img",
        aria_label=words("timeline"),
        class_="strip",
    )
