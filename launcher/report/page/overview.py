"""What a reader wants first: state, how it ended, the main figures; for several runs as one table. Pure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

from launcher.report.figures import format_number, format_seconds
from launcher.report.page.chart import COLORS
from launcher.report.page.markup import Markup, table, tag
from launcher.report.page.words import Words
from launcher.report.run_record import RunRecord, number


def describe_run(record: RunRecord, words: Words) -> Markup:
    """Notes on the state, the message of a failure, and tiles of figures."""
    notes = []
    if record.state == "running":
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        notes.append(tag("p", words("running_note").format(time=now), class_="muted"))
    if record.state == "broken":
        notes.append(tag("p", words("broken_note"), class_="box bad"))
    return tag("div", notes, _describe_end(record, words), _make_tiles(record, words))


def describe_target(record: RunRecord) -> str:
    """What was run, in one line: method, model and data of a recipe, or the script."""
    settings = record.settings
    names = [
        str(settings.get(key) or "").rstrip("/").rpartition("/")[2] for key in ("model.path", "data.path")
    ]
    parts = [str(settings.get("method") or ""), *names] if settings else [find_target(record)]
    return " \u00b7 ".join(part for part in parts if part)


def find_target(record: RunRecord) -> str:
    """The recipe, script or module, as the first event says."""
    for event in record.events:
        data = event.get("data")
        if event.get("kind") == "start" and isinstance(data, Mapping):
            return str(data.get("target", ""))
    return ""


def make_badge(record: RunRecord, words: Words) -> Markup:
    """The state as a coloured word."""
    key = "unknown_state" if record.state == "unknown" else record.state
    return tag("span", words(key), class_=f"badge {record.state}")


def _describe_end(record: RunRecord, words: Words) -> Markup | None:
    message = record.summary.get("message")
    if record.state == "done" or not message:
        return None
    code = record.summary.get("exit")
    title = tag("b", words("how_it_ended"))
    detail = tag("small", f"{words('exit')} {code}") if number(code) is not None else None
    return tag("div", tag("p", title, detail), tag("pre", message), class_="box bad")


def _make_tiles(record: RunRecord, words: Words) -> Markup | None:
    tiles = [_loss_tile(record, words), _eval_tile(record, words), _steps_tile(record, words)]
    speed = record.values("tokens_per_s")
    if speed:
        value = format_number(statistics.median(speed))
        tiles.append(_tile(words("throughput"), value, words("throughput_note")))
    tiles.append(_tile(words("time"), format_seconds(span_of(record)), start_of(record)))
    ranks, nodes = count_ranks(record)
    if ranks:
        where = words("on_node") if nodes == 1 else words("on_nodes").format(count=nodes)
        tiles.append(_tile(words("ranks"), str(ranks), where))
    return tag("div", [tile for tile in tiles if tile is not None], class_="tiles")


def _tile(label: str, value: str, note: str = "") -> Markup:
    return tag(
        "div", tag("span", label), tag("b", value), tag("small", note) if note else None, class_="tile"
    )


def _loss_tile(record: RunRecord, words: Words) -> Markup | None:
    losses = record.values("loss")
    if not losses:
        return None
    return _tile(
        words("last_loss"),
        format_number(losses[-1]),
        words("from_loss").format(value=format_number(losses[0])),
    )


def _eval_tile(record: RunRecord, words: Words) -> Markup | None:
    best = find_best(record)
    if best is None:
        return None
    return _tile(words("best_eval"), format_number(best[1]), words("at_step").format(step=f"{best[0]:,}"))


def _steps_tile(record: RunRecord, words: Words) -> Markup | None:
    losses = record.series("loss")
    if not losses:
        return None
    told = record.values("num_steps")  # epochs come to steps only on the ranks
    total = told[-1] if told else number(record.settings.get("train.max_steps"))
    return _tile(
        words("steps"), f"{losses[-1][0]:,}", words("of_steps").format(total=f"{total:,.0f}") if total else ""
    )


def find_best(record: RunRecord) -> tuple[int, float] | None:
    """(step, loss) of the lowest validation loss."""
    evaluated = [point for point in record.series("eval_loss") if point[1] == point[1]]
    return min(evaluated, key=lambda point: (point[1], point[0])) if evaluated else None


def span_of(record: RunRecord) -> float | None:
    """Seconds from the first event or row of metrics to the last."""
    times = times_of(record)
    return max(times) - min(times) if times else None


def start_of(record: RunRecord) -> str:
    """When it began, by the reader's clock."""
    times = times_of(record)
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(min(times))) if times else ""


def times_of(record: RunRecord) -> list[float]:
    """Time stamps of events and metrics that a clock can have shown."""
    found = (number(row.get("time")) for row in (*record.events, *record.metrics))
    return [value for value in found if value is not None and 0 < value < 4e9]


def count_ranks(record: RunRecord) -> tuple[int, int]:
    """(ranks, nodes) of the plan; (0, 0) where there is none."""
    ranks = number(record.plan.get("world_size"))
    nodes = record.plan.get("nodes")
    return (int(ranks), len(nodes)) if ranks and isinstance(nodes, list) and nodes else (0, 0)


def compare_runs(records: Sequence[RunRecord], words: Words) -> Markup:
    """One row a run."""
    keys = ("run", "state", "steps", "first_loss", "last_loss", "best_eval", "throughput", "time", "ranks")
    return table(
        [words(key) for key in keys], [_compare_row(i, r, words) for i, r in enumerate(records)], "numbers"
    )


def _compare_row(index: int, record: RunRecord, words: Words) -> list[object]:
    losses, speed, best = record.series("loss"), record.values("tokens_per_s"), find_best(record)
    finite = record.values("loss")
    ranks, nodes = count_ranks(record)
    name = tag("td", tag("i", class_=f"key c{index % COLORS + 1} line"), record.label, class_="name")
    return [
        name,
        make_badge(record, words),
        f"{losses[-1][0]:,}" if losses else "\u2013",
        format_number(finite[0] if finite else None),
        format_number(finite[-1] if finite else None),
        f"{format_number(best[1])} ({words('at_step').format(step=best[0])})" if best else "\u2013",
        format_number(statistics.median(speed) if speed else None),
        format_seconds(span_of(record)),
        f"{ranks} / {nodes}" if ranks else "\u2013",
    ]
