"""Elements of HTML and SVG as text; whatever is no ``Markup`` is escaped. Pure.

What ranks and hosts wrote comes in as plain text, so a ``<script>`` of theirs can only be shown, never run.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any

_VOID = frozenset({"meta", "br", "link", "input", "line", "rect", "circle", "path", "polyline", "polygon"})
_HTML_VOID = frozenset({"meta", "br", "link", "input"})
#: characters that HTML forbids
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """A value as text of a page."""
    if isinstance(value, Markup):
        return value
    return Markup(html.escape(_FORBIDDEN.sub("\ufffd", str(value)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element.

    Args:
        children: text, Markup, or lists of them; None is left out.
        attributes: ``class_`` and the like lose their underscore, others turn into hyphens; None and False are left
            out, True is an attribute without a value.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(key if value is True else f'{key}="{escape(value)}"')
    opening = " ".join(words)
    if name in _HTML_VOID:
        return Markup(f"<{opening}>")
    if name in _VOID and not children:
        return Markup(f"<{opening}/>")
    return Markup(f"<{opening}>{join(children)}</{name}>")


def join(parts: Iterable[object]) -> Markup:
    """Parts behind each other; lists among them are joined too."""
    return Markup("".join(_flat(part) for part in parts if part is not None))


def _flat(part: object) -> str:
    return join(part) if isinstance(part, list | tuple) else escape(part)


def data_island(value: Any, class_: str) -> Markup:
    """JSON for the page's own script; no text in it can end the element."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" class="{escape(class_)}">{safe}</script>')


def table(head: Iterable[object], rows: Iterable[Iterable[object]], class_: str = "") -> Markup:
    """A table that scrolls by itself where the window is narrow; a cell may be a whole ``td``."""
    body = [tag("tr", [cell if _is_cell(cell) else tag("td", cell) for cell in row]) for row in rows]
    titles = tag("thead", tag("tr", [tag("th", title, scope="col") for title in head]))
    return tag("div", tag("table", titles, tag("tbody", body), class_=class_ or None), class_="scroll")


def _is_cell(cell: object) -> bool:
    return isinstance(cell, Markup) and cell.startswith(("<td", "<th"))
