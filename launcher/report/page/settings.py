"""Recipes of runs: one as a table by section, several as the keys in which they differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from launcher.base.config import Recipe, to_dict
from launcher.base.limits import flatten
from launcher.report.page.chart import COLORS
from launcher.report.page.markup import Markup, table, tag
from launcher.report.page.overview import find_target
from launcher.report.page.words import Words
from launcher.report.run_record import RunRecord


def show_settings(record: RunRecord, words: Words) -> Markup:
    """All keys of one run; those that are not the default's are marked."""
    settings = record.settings
    if not settings:
        return tag("p", words("no_settings"), class_="muted")
    defaults = dict(flatten(to_dict(Recipe())))
    rows = [
        [
            tag("code", key),
            tag("td", format_value(value), class_="odd" if value != defaults.get(key, value) else None),
        ]
        for key, value in settings.items()
    ]
    return tag(
        "div", tag("p", words("changed_note"), class_="muted"), table([words("key"), words("value")], rows)
    )


def show_differences(records: Sequence[RunRecord], words: Words) -> Markup:
    """The keys in which runs differ, a column each run; how many are the same stands below."""
    columns = [{"target": find_target(record), **record.settings} for record in records]
    different, num_equal = find_differences(columns)
    if not different:
        return tag("p", words("no_differences"), class_="muted")
    head = [
        words("key"),
        *(
            tag("span", tag("i", class_=f"key c{index % COLORS + 1} line"), record.label)
            for index, record in enumerate(records)
        ),
    ]
    rows = [
        [
            words("target") if key == "target" else tag("code", key),
            *(format_value(column[key]) if key in column else "\u2013" for column in columns),
        ]
        for key in different
    ]
    equal = tag("p", words("equal_keys").format(count=num_equal), class_="muted")
    return tag("div", table(head, rows), equal)


def find_differences(columns: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """The keys whose values are not the same everywhere, and how many are."""
    keys = list(dict.fromkeys(key for column in columns for key in column))
    different = [
        key
        for key in keys
        if any(key not in column or column[key] != columns[0].get(key) for column in columns)
    ]
    return different, len(keys) - len(different)


def format_value(value: object) -> str:
    """A setting as a person writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={held}" for key, held in value.items()) or "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
