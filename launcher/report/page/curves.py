"""Metrics of one or more runs -> the charts of the page. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from launcher.report.figures import format_number
from launcher.report.page.chart import Chart, Line, draw_chart
from launcher.report.page.markup import Markup, table, tag
from launcher.report.page.words import Words
from launcher.report.plots import smooth
from launcher.report.run_record import RunRecord

#: the figures beside the loss, and whether their axis starts at 0
_SMALL = (
    ("lr", True),
    ("grad_norm", True),
    ("tokens_per_s", True),
    ("mfu", True),
    ("step_s", True),
    ("data_wait_s", True),
    ("memory_gib", True),
)
#: below so many steps there is nothing to smooth
_SHORT = 10
_TABLE_ROWS = 25


def draw_curves(records: Sequence[RunRecord], words: Words) -> Markup:
    """All charts of a page: one large for the losses, small ones for the rest."""
    large = draw_chart(_loss_chart(records, words))
    if large is None:
        return tag("p", words("no_curves"), class_="muted")
    small = [draw_chart(_small_chart(records, key, from_zero, words)) for key, from_zero in _SMALL]
    figures = _table_of(records[0], words) if len(records) == 1 else None
    return tag("div", large, tag("div", small, class_="grid"), figures)


def _loss_chart(records: Sequence[RunRecord], words: Words) -> Chart:
    lines: list[Line] = []
    if len(records) == 1:
        lines = _lines_of_one(records[0], words)
        return Chart(words("loss"), lines, words("step"), words("loss_note"))
    for index, record in enumerate(records, start=1):
        losses = record.series("loss")
        if len(losses) >= _SHORT and len(records) <= 3:
            lines.append(Line("", losses, index, "faint"))
        lines.append(Line(record.label, smooth_points(losses), index))
    for index, record in enumerate(records, start=1):
        lines.append(Line(_no_name(record, words), record.series("eval_loss"), index, "marks"))
    return Chart(words("loss"), lines, words("step"), words("dots_note"), height=340)


def _no_name(record: RunRecord, words: Words) -> str:
    return f"{record.label}: {words('eval_loss')}" if record.values("eval_loss") else ""


def _lines_of_one(record: RunRecord, words: Words) -> list[Line]:
    losses = record.series("loss")
    lines = [Line(words("raw_loss"), losses, 1, "faint" if len(losses) >= _SHORT else "line")]
    if len(losses) >= _SHORT:
        lines.append(Line(words("train_loss"), smooth_points(losses), 1))
    return [*lines, Line(words("eval_loss"), record.series("eval_loss"), 2, "marks")]


def smooth_points(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """The points with their smoothed values: over a twentieth of the run, so that it looks alike for any length."""
    if len(points) < _SHORT:
        return [(step, value) for step, value in points]
    weight = 1 - 1 / max(3.0, len(points) / 20)
    values = smooth([value for _, value in points], weight)
    return [(step, value) for (step, _), value in zip(points, values, strict=True)]


def _small_chart(records: Sequence[RunRecord], key: str, from_zero: bool, words: Words) -> Chart:
    single = len(records) == 1
    lines = [
        Line(words("value") if single else record.label, record.series(key), index)
        for index, record in enumerate(records, start=1)
    ]
    medians = [statistics.median(record.values(key)) for record in records if record.values(key)]
    note = f"~ {format_number(medians[0])}" if single and medians and key not in ("lr", "memory_gib") else ""
    return Chart(words(key), lines, words("step"), note, width=340, height=170, from_zero=from_zero)


def _table_of(record: RunRecord, words: Words) -> Markup | None:
    """Some rows of metrics as numbers: what a chart shows, for who cannot see it."""
    losses = record.series("loss")
    if not losses:
        return None
    every = max(1, math.ceil(len(losses) / _TABLE_ROWS))
    columns = {
        key: dict(record.series(key)) for key in ("eval_loss", "lr", "grad_norm", "tokens_per_s", "step_s")
    }
    columns = {key: values for key, values in columns.items() if values}
    evaluated = columns.get("eval_loss", {})
    last = losses[-1][0]
    shown = [
        [f"{step:,}", format_number(loss), *(format_number(values.get(step)) for values in columns.values())]
        for index, (step, loss) in enumerate(losses)
        if index % every == 0 or step == last or step in evaluated
    ]
    head = [words("step"), words("loss"), *(words(key) for key in columns)]
    return tag("details", tag("summary", words("all_figures")), table(head, shown[:200], "numbers"))
