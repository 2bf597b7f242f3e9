"""Series of figures -> an inline SVG chart with grid, legend and the points that the page's script shows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.report.page.markup import Markup, data_island, tag
from launcher.report.page.scale import (
    Points,
    Scale,
    find_range,
    find_ticks,
    format_tick,
    thin_out,
)

#: points of one line at most
MAX_POINTS = 700
#: colours of the style sheet
COLORS = 8
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 12, 26


@dataclass(frozen=True, slots=True)
class Line:
    """One series.

    Attributes:
        name: in the legend; an empty one is left out there and under the pointer.
        points: (step, value) in order of steps; NaN lifts the pen.
        color: number of the colour, from 1.
        kind: ``line``, ``faint`` (behind the others) or ``marks`` (points joined by a thin line).
    """

    name: str
    points: Points
    color: int = 1
    kind: str = "line"


@dataclass(frozen=True, slots=True)
class Chart:
    """What is drawn.

    Attributes:
        title: above it, with the unit.
        axis: what is counted along it.
        note: behind the title, smaller.
        width, height: of the drawing's own units; the page stretches it.
        from_zero: the axis starts at 0.
    """

    title: str
    lines: Sequence[Line]
    axis: str = ""
    note: str = ""
    width: int = 860
    height: int = 300
    from_zero: bool = False


def draw_chart(chart: Chart) -> Markup | None:
    """The chart as a ``figure``; None when no line has a finite point."""
    lines = [line for line in chart.lines if any(math.isfinite(value) for _, value in line.points)]
    if not lines:
        return None
    finite = [(x, y) for line in lines for x, y in line.points if math.isfinite(y)]
    steps = [x for x, _ in finite]
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    across = Scale(first, last, _LEFT, chart.width - _RIGHT)
    low, high = find_range([y for _, y in finite], chart.from_zero)
    up = Scale(low, high, chart.height - _BOTTOM, _TOP)
    named = [line for line in lines if line.name]
    thinned = [(line, thin_out(line.points, MAX_POINTS)) for line in lines]
    picture = tag(
        "svg",
        _draw_grid(chart, across, up),
        [_draw_line(line, points, across, up) for line, points in thinned],
        tag("line", class_="cursor", x1=0, x2=0, y1=_TOP, y2=chart.height - _BOTTOM, visibility="hidden"),
        viewBox=f"0 0 {chart.width} {chart.height}",
        role="img",
        aria_label=chart.title,
        data_x=f"{first} {last} {_LEFT} {chart.width - _RIGHT}",
    )
    shown = [
        {"name": line.name, "color": _color(line), "points": [_round(point) for point in points]}
        for line, points in thinned
        if line.name
    ]
    caption = tag("figcaption", tag("b", chart.title), tag("small", chart.note) if chart.note else None)
    return tag(
        "figure",
        caption,
        _draw_legend(named) if len(named) > 1 else None,
        tag("div", picture, tag("div", class_="tip", hidden=True), class_="plot"),
        data_island(shown, "points"),
        class_="chart large" if chart.width > 500 else "chart",
    )


def _round(point: tuple[float, float]) -> list[float | None]:
    return [point[0], float(f"{point[1]:.6g}") if math.isfinite(point[1]) else None]


def _color(line: Line) -> int:
    return (line.color - 1) % COLORS + 1


def _draw_legend(lines: Sequence[Line]) -> Markup:
    entries = [tag("span", tag("i", class_=f"key c{_color(line)} {line.kind}"), line.name) for line in lines]
    return tag("div", entries, class_="legend")


def _draw_grid(chart: Chart, across: Scale, up: Scale) -> list[Markup]:
    right, floor = chart.width - _RIGHT, chart.height - _BOTTOM
    rows = find_ticks(up.low, up.high, max(3, chart.height // 42))
    columns = find_ticks(across.low, across.high, max(2, chart.width // 85), whole=True)
    gap = rows[1] - rows[0] if len(rows) > 1 else 1.0
    parts = []
    for value in rows:
        y = f"{up(value):.1f}"
        parts.append(tag("line", class_="grid", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(
            tag("text", format_tick(value, gap), class_="tick end", x=_LEFT - 8, y=f"{up(value) + 4:.1f}")
        )
    for value in columns:
        x = f"{across(value):.1f}"
        parts.append(tag("line", class_="axis", x1=x, x2=x, y1=floor, y2=floor + 4))
        parts.append(tag("text", f"{value:,.0f}", class_="tick middle", x=x, y=floor + 18))
    parts.append(tag("text", chart.axis, class_="tick end axis", x=_LEFT - 8, y=floor + 18))
    return [*parts, tag("line", class_="axis", x1=_LEFT, x2=right, y1=floor, y2=floor)]


def _draw_line(line: Line, points: Points, across: Scale, up: Scale) -> Markup:
    words, pen_up = [], True
    for x, y in points:
        if not math.isfinite(y):
            pen_up = True
            continue
        words.append(f"{'M' if pen_up else 'L'}{across(x):.1f} {up(y):.1f}")
        pen_up = False
    drawn = tag("path", class_=f"{line.kind} c{_color(line)}", d="".join(words))
    is_short = len(words) < 3 or line.kind == "marks"
    if not is_short:
        return drawn
    dots = [
        tag("circle", class_=f"dot c{_color(line)}", cx=f"{across(x):.1f}", cy=f"{up(y):.1f}", r=3.5)
        for x, y in points
        if math.isfinite(y)
    ]
    return tag("g", drawn, dots)
