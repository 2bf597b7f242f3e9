"""Rules on whether anything is learnt: gradients, a learning rate too high or too low, validation. Pure."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence

from launcher.report.diagnosis.measures import (
    find_rate,
    find_start,
    measure_fall,
    measure_noise,
    name_some,
    usual_rates,
    written,
)
from launcher.report.diagnosis.verdict import Verdict
from launcher.report.run_record import RunRecord, number

#: rows without any gradient before it is called one that never comes
SILENT_ROWS = 3
#: a run shorter than that has no trend to speak of
TREND_STEPS = 20
#: a median of so many losses over the first one: as a share of it, in standard deviations, and at least in nats
RISE_SHARE, RISE_NOISE, RISE_LEAST, RISE_WINDOW = 0.15, 4.0, 0.2, 5
#: the median of the last quarter over the lowest median of a quarter
TURN_SHARE = 0.1
#: steps between neighbours as a share of the loss, on a curve that has not fallen by FALLEN_SHARE
SWING_SHARE, FALLEN_SHARE = 0.25, 0.1
#: a fall below this share of the start, or within so many standard errors, is none
FLAT_SHARE, FLAT_ERRORS = 0.01, 2.0
#: validation over its lowest, as a share; measurements after the lowest that must all stand above it
PART_SHARE, PART_COUNT, PART_EACH = 0.05, 2, 0.02

_NO_GRADIENT = re.compile(r"(\d+) parameters should learn but get no gradient: (.*)")


def nothing_trained(record: RunRecord) -> Verdict | None:
    """Parameters that should learn have no gradient, or the optimizer leaves them where they are."""
    told = _NO_GRADIENT.search(str(record.summary.get("message", "")))
    if told:
        return Verdict(
            "NOTHING_TRAINED", written(what="no_gradient", count=told[1], total="?", names=told[2]), 1
        )
    facts, rate = record.facts, find_rate(record)
    silent, still = (int(number(facts.get(key)) or 0) for key in ("without_gradient", "unmoved"))
    if still and rate is not None and rate < usual_rates(record)[0] / 100:
        still = 0  # moved by less than a float32 can show: the rate is too low, which is another rule's word
    total = int(number(facts.get("trainable_tensors")) or 0)
    if silent or still:
        what, count = ("no_gradient", silent) if silent else ("unmoved", still)
        key = "without_gradient_names" if silent else "unmoved_names"
        names = name_some(facts.get(key), count)
        return Verdict(
            "NOTHING_TRAINED", written(what=what, count=str(count), total=str(total), names=names), 3
        )
    norms = record.values("grad_norm")[:SILENT_ROWS]
    if len(norms) == SILENT_ROWS and max(norms) == 0:
        return Verdict(
            "NOTHING_TRAINED", written(what="no_gradient", count="0", total="0", names="grad_norm 0"), 1
        )
    return None


def rate_too_high(record: RunRecord) -> Verdict | None:
    """The loss rises over its first, turns and rises from its lowest, or jumps from step to step without falling."""
    losses, rate = record.values("loss"), find_rate(record)
    if len(losses) < 2 * RISE_WINDOW or rate is None:
        return None
    noise, (low, high) = measure_noise(losses), usual_rates(record)
    rates = written(rate=rate, lower=_lower_rate(rate, low, high), low=low, high=high)
    first, (at, highest) = losses[0], find_highest(losses, RISE_WINDOW)
    limit = first + max(RISE_SHARE * first, RISE_NOISE * noise, RISE_LEAST)
    if highest > limit:
        values = written(what="rises", start=first, highest=highest, limit=limit)
        return Verdict("RATE_TOO_HIGH", {**rates, **values}, at)
    if len(losses) < TREND_STEPS:
        return None
    quarter = len(losses) // 4
    # back from the last one, not at each step: a long curve has many, and they hardly differ
    places = range(len(losses) - quarter, -1, -max(1, quarter // 16))[::-1]
    middles = [statistics.median(losses[i : i + quarter]) for i in places]
    lowest, last = min(middles), middles[-1]
    error = 1.25 * noise * math.sqrt(2 / quarter)  # of medians
    limit = lowest + max(TURN_SHARE * lowest, RISE_NOISE * error, RISE_LEAST)
    if last > limit:
        values = written(what="turns", start=lowest, highest=last, limit=limit)
        return Verdict("RATE_TOO_HIGH", {**rates, **values}, 1 + places[middles.index(lowest)] + quarter // 2)
    middle = statistics.median(losses)
    has_fallen = statistics.median(losses[-len(losses) // 3 :]) < (1 - FALLEN_SHARE) * find_start(losses)
    if noise > SWING_SHARE * middle and not has_fallen:
        values = written(what="swings", swing=100 * noise / max(1e-9, middle))
        return Verdict("RATE_TOO_HIGH", {**rates, **values})
    return None


def find_highest(losses: Sequence[float], window: int) -> tuple[int, float]:
    """(step, value) of the highest median of so many losses in a row, the first loss apart."""
    medians = [statistics.median(losses[i : i + window]) for i in range(1, len(losses) - window + 1)]
    highest = max(medians)
    return 2 + medians.index(highest) + window // 2, highest


def _lower_rate(rate: float, low: float, high: float) -> float:
    """A tenth; of a rate far above the usual range the middle of that range."""
    return max(low, min(rate / 10, math.sqrt(low * high)))


def rate_too_low(record: RunRecord) -> Verdict | None:
    """The loss does not move, and the learning rate is below what is usual."""
    losses, rate = record.values("loss"), find_rate(record)
    low, high = usual_rates(record)
    if len(losses) < TREND_STEPS or rate is None or rate >= low:
        return None
    fall, error = measure_fall(losses)
    start = find_start(losses)
    if fall > max(FLAT_SHARE * start, FLAT_ERRORS * error):
        return None
    return Verdict(
        "RATE_TOO_LOW",
        written(
            fall=fall, steps=str(len(losses)), start=start, noise=FLAT_ERRORS * error, rate=rate,
            higher=math.sqrt(low * high), low=low, high=high,
        ),
    )  # fmt: skip


def validation_parts(record: RunRecord) -> Verdict | None:
    """Validation has risen from its lowest while training went on falling."""
    evaluated = [(step, loss) for step, loss in record.series("eval_loss") if loss == loss]
    losses = [(step, loss) for step, loss in record.series("loss") if loss == loss]
    if len(evaluated) < 1 + PART_COUNT or not losses:
        return None
    best_step, best = min(evaluated, key=lambda point: point[1])
    after = [loss for step, loss in evaluated if step > best_step]
    last = evaluated[-1][1]
    if len(after) < PART_COUNT or last < (1 + PART_SHARE) * best or min(after) < (1 + PART_EACH) * best:
        return None
    before_mean, after_mean = _means_about(losses, best_step)
    if after_mean is None or before_mean is None or after_mean >= before_mean:
        return None
    return Verdict(
        "VALIDATION_PARTS",
        written(
            best=best, best_step=str(best_step), last=last, last_step=str(evaluated[-1][0]),
            rise=100 * (last / best - 1), before=before_mean, after=after_mean,
        ),
        best_step,
    )  # fmt: skip


def _means_about(losses: Sequence[tuple[int, float]], step: int) -> tuple[float | None, float | None]:
    """Mean training loss up to a step, over as many steps as there are behind it at most, and of the last part."""
    before = [loss for at, loss in losses if at <= step]
    after = [loss for at, loss in losses if at > step]
    size = max(1, min(len(before), len(after)))
    return (
        statistics.fmean(before[-size:]) if before else None,
        statistics.fmean(after[-max(1, size // 2) :]) if after else None,
    )
