"""Rows of metrics -> loss.png. Runs on the head, with matplotlib where it is installed."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.report.metrics import take_series

_RAW, _SMOOTH, _EVALUATED, _GREY = "#9dbfe3", "#1f5fa8", "#d9541e", "#666666"
#: one colour a run, as on the page
_COLORS = ("#2467c9", "#d9541e", "#188a56", "#8450c4", "#b98900", "#c0397e", "#0f8b9d", "#6a7380")


def write_loss_png(metrics: Sequence[Mapping[str, Any]], path: str | Path, title: str = "") -> bool:
    """Draw loss, eval loss and learning rate over steps; False, and no file, without matplotlib or a loss."""
    losses = take_series(metrics, "loss")
    if not any(math.isfinite(loss) for _, loss in losses):
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    rates = take_series(metrics, "lr")
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    if rates:
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
        _draw_rates(lower, rates)
    else:
        upper = lower = figure.subplots()
    _draw_losses(upper, losses, take_series(metrics, "eval_loss"))
    upper.set_title(title or "loss", loc="left", fontsize=11)
    lower.set_xlabel("step", color=_GREY)
    _save(figure, Path(path))
    return True


def write_compared_png(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]], path: str | Path) -> bool:
    """Draw the smoothed losses and eval losses of several runs over steps; False, and no file, as above.

    Args:
        runs: (label, rows of metrics) of each.
    """
    curves = [(label, take_series(rows, "loss"), take_series(rows, "eval_loss")) for label, rows in runs]
    if not any(math.isfinite(loss) for _, losses, _ in curves for _, loss in losses):
        return False
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, (label, losses, evaluated) in enumerate(curves):
        color = _COLORS[number % len(_COLORS)]
        style = "-" if number < len(_COLORS) else "--"
        if losses:
            steps, values = zip(*losses, strict=True)
            weight = 1 - 1 / max(3.0, len(losses) / 20)
            shown = smooth(values, weight) if len(losses) >= 10 else list(values)
            axes.plot(steps, shown, style, color=color, linewidth=1.8, label=_plain(label))
        if evaluated:
            axes.plot(*zip(*evaluated, strict=True), "o", color=color, markersize=5)
    axes.set_title("loss (lines: training, smoothed; dots: validation)", loc="left", fontsize=11)
    axes.set_xlabel("step", color=_GREY)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    _tidy(axes)
    _save(figure, Path(path))
    return True


def _plain(label: str) -> str:
    # an underscore in front hides a line from the legend, and dollars begin a formula
    return label.lstrip("_").replace("$", r"\$")


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Exponential mean over both directions, so that the line does not lag behind; gaps stay gaps.

    Args:
        weight: of the values on one side of a point, below 1.
    """
    forward = _smooth_forward(values, weight)
    backward = _smooth_forward(values[::-1], weight)[::-1]
    return [(before + after) / 2 for before, after in zip(forward, backward, strict=True)]


def _smooth_forward(values: Sequence[float], weight: float) -> list[float]:
    result, mean, total = [], 0.0, 0.0
    for value in values:
        if math.isfinite(value):
            mean = weight * mean + (1 - weight) * value
            total = weight * total + (1 - weight)
        result.append(mean / total if math.isfinite(value) else math.nan)
    return result


def _draw_losses(
    axes: Any, losses: Sequence[tuple[int, float]], evaluated: Sequence[tuple[int, float]]
) -> None:
    steps, values = zip(*losses, strict=True)
    is_short = len(losses) < 10
    axes.plot(
        steps,
        values,
        color=_SMOOTH if is_short else _RAW,
        linewidth=1.0,
        marker="." if is_short else "",
        label="loss",
    )
    if not is_short:
        # a twentieth of the run, so that the line looks alike for any length
        weight = 1 - 1 / max(3.0, len(losses) / 20)
        axes.plot(steps, smooth(values, weight), color=_SMOOTH, linewidth=1.8, label="loss, smoothed")
    if evaluated:
        axes.plot(*zip(*evaluated, strict=True), "o", color=_EVALUATED, markersize=5, label="eval loss")
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    _tidy(axes)


def _draw_rates(axes: Any, rates: Sequence[tuple[int, float]]) -> None:
    axes.plot(*zip(*rates, strict=True), color=_GREY, linewidth=1.2)
    axes.set_ylabel("lr", color=_GREY)
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.grid(alpha=0.25)
    _tidy(axes)


def _tidy(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=_GREY, labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)


def _save(figure: Any, path: Path) -> None:
    aside = path.with_name(path.name + ".partial")
    figure.savefig(aside, format="png")
    os.replace(aside, path)
