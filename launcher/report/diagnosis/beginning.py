"""Rules on what a run begins with: its first loss, how the tokenizer cuts text, how rows come. Pure."""

from __future__ import annotations

import math

from launcher.report.diagnosis.measures import written
from launcher.report.diagnosis.verdict import Verdict
from launcher.report.run_record import RunRecord, number

#: nats over ln(vocabulary)
FIRST_LOSS_NATS = 1.0
#: UTF-8 bytes a token, and share of tokens that stand for what the tokenizer does not know
LEAST_BYTES, MOST_UNKNOWN = 1.4, 0.01
#: fewer rows than that say nothing about all
LEAST_ROWS = 20
#: share of pieces that half of all pairs of rows have in common; share of rows that are different
ALIKE, LEAST_DISTINCT = 0.8, 0.5
#: share of rows drawn right behind their neighbour in the file
FILE_ORDER = 0.5


def first_loss_high(record: RunRecord) -> Verdict | None:
    """The first loss is far above that of a blind guess, ln(vocabulary)."""
    vocabulary = number(record.facts.get("vocab_size"))
    series = record.series("loss")
    if not vocabulary or vocabulary < 2 or not series or series[0][0] != 1:
        return None
    first, blind = series[0][1], math.log(vocabulary)
    if not first > blind + FIRST_LOSS_NATS:
        return None
    return Verdict(
        "FIRST_LOSS_HIGH",
        written(first=first, blind=blind, vocabulary=f"{vocabulary:.0f}", limit=blind + FIRST_LOSS_NATS),
        1,
    )


def text_shredded(record: RunRecord) -> Verdict | None:
    """The tokenizer cuts the rows into bytes, or does not know what they are written in."""
    size, unknown = (number(record.facts.get(key)) for key in ("bytes_per_token", "unknown_share"))
    if unknown is not None and unknown > MOST_UNKNOWN:
        return Verdict("TEXT_SHREDDED", written(what="unknown", unknown=100 * unknown, bytes=size))
    if size is not None and 0 < size < LEAST_BYTES:
        return Verdict("TEXT_SHREDDED", written(what="bytes", bytes=size, unknown=100 * (unknown or 0.0)))
    return None


def rows_alike(record: RunRecord) -> Verdict | None:
    """Rows are nearly all the same."""
    facts = record.facts
    rows, alike, distinct = (number(facts.get(key)) for key in ("rows", "alike", "distinct_share"))
    if rows is None or rows < LEAST_ROWS or alike is None or distinct is None:
        return None
    if alike < ALIKE and distinct >= LEAST_DISTINCT:
        return None
    what = "copies" if distinct < LEAST_DISTINCT else "alike"
    return Verdict(
        "ROWS_ALIKE", written(what=what, rows=f"{rows:.0f}", alike=100 * alike, distinct=100 * distinct)
    )


def not_shuffled(record: RunRecord) -> Verdict | None:
    """Rows come in the order of the file."""
    rows, share = (number(record.facts.get(key)) for key in ("rows", "file_order_share"))
    if rows is None or rows < LEAST_ROWS or share is None or share < FILE_ORDER:
        return None
    return Verdict("NOT_SHUFFLED", written(rows=f"{rows:.0f}", share=100 * share, shuffled=100 / rows))
