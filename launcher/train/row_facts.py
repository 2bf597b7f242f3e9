"""Rows and tokenizer -> figures by which curves are judged: how text is cut, how alike rows are. Runs in every rank.

Taken from a sample, so that it costs milliseconds; the same sample on every rank.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Sequence
from typing import Any

from launcher.train.rows import Row

#: rows looked at, and pairs of them compared
SAMPLE_ROWS, SAMPLE_PAIRS = 200, 300
#: characters of a piece by which two rows are compared, and of a row that count
PIECE, MAX_CHARS = 5, 2000
#: below and above these a tokenizer was not made for the rows
FEWEST_BYTES, MOST_UNKNOWN = 2.0, 0.05


def describe_rows(rows: Sequence[Row], tokenizer: Any) -> dict[str, float]:
    """Figures about rows; nothing for no rows.

    Returns:
        ``bytes_per_token`` and ``chars_per_token`` (of the rows' own text, without a template), ``unknown_share``
        (of tokens), ``distinct_share`` (of rows), ``alike`` (0 to 1: the median over pairs of rows of the share of
        five-character pieces that both have).
    """
    texts = [join_text(row) for row in take_evenly(rows, SAMPLE_ROWS)]
    if not any(texts):
        return {}
    tokens = [token for ids in tokenizer(texts, add_special_tokens=False)["input_ids"] for token in ids]
    unknown = tokenizer.unk_token_id
    all_texts = {join_text(row) for row in rows}
    return {
        "bytes_per_token": sum(len(text.encode("utf-8", "replace")) for text in texts) / max(1, len(tokens)),
        "chars_per_token": sum(map(len, texts)) / max(1, len(tokens)),
        "unknown_share": sum(token == unknown for token in tokens) / max(1, len(tokens))
        if unknown is not None
        else 0.0,
        "distinct_share": len(all_texts) / len(rows),
        "alike": measure_alike(texts),
    }


def warn_of_shreds(facts: dict[str, float]) -> str:
    """A warning about a tokenizer that was not made for the language of the rows; empty when it fits."""
    if not facts:
        return ""
    if facts["unknown_share"] > MOST_UNKNOWN:
        return (
            f"{facts['unknown_share']:.0%} of the tokens of these rows are unknown to this model's tokenizer"
        )
    if facts["bytes_per_token"] >= FEWEST_BYTES:
        return ""
    return (
        f"a token holds {facts['chars_per_token']:.2f} characters ({facts['bytes_per_token']:.1f} bytes) of these rows, "
        "usual are 3 to 5 bytes: this tokenizer cuts their language into shreds, and training is slow and poor"
    )


def join_text(row: Row) -> str:
    """All that a row says."""
    return "\n".join(part for turn in row.turns for part in (turn.text, turn.extra) if part)


def take_evenly(rows: Sequence[Row], count: int) -> Sequence[Row]:
    """At most so many rows, spread over all."""
    return rows[:: max(1, len(rows) // count)][:count]


def measure_alike(texts: Sequence[str]) -> float:
    """The median over pairs of texts of pieces in common by all pieces; 0.0 for fewer than two texts."""
    if len(texts) < 2:
        return 0.0
    pieces = [_cut(text[:MAX_CHARS]) for text in texts]
    draw = random.Random(0)  # noqa: S311  # a sample is no secret
    pairs = (draw.sample(pieces, 2) for _ in range(SAMPLE_PAIRS))
    return statistics.median(len(a & b) / max(1, len(a | b)) for a, b in pairs)


def measure_order(drawn: Sequence[int]) -> float:
    """The share of rows that come right behind the row that stands before them in the file; 1.0: never shuffled."""
    if len(drawn) < 2:
        return 0.0
    return sum(b - a == 1 for a, b in itertools.pairwise(drawn)) / (len(drawn) - 1)


def _cut(text: str) -> set[str]:
    return {text[i : i + PIECE] for i in range(max(1, len(text) - PIECE + 1))}
