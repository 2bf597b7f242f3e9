"""Verdicts on a run as boxes: what, on what evidence, against which threshold and why, and what to try. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.report.diagnosis.rules import put_into_words
from launcher.report.diagnosis.verdict import Verdict
from launcher.report.page.markup import Markup, tag
from launcher.report.page.words import Words

#: fewer losses than that say nothing by their absence of verdicts
LEAST_STEPS = 10


def show_verdicts(verdicts: Sequence[Verdict], num_losses: int, language: str, words: Words) -> Markup:
    """A box a verdict, or one line that says that there is none."""
    if not verdicts:
        key = "no_verdict" if num_losses >= LEAST_STEPS else "too_short"
        return tag("p", words(key), class_="muted")
    return tag("div", [_show(verdict, language, words) for verdict in verdicts])


def _show(verdict: Verdict, language: str, words: Words) -> Markup:
    said = put_into_words(verdict, language)
    pairs = [
        (words("evidence"), said.evidence),
        (words("try"), said.cure),
        (words("threshold"), said.threshold),
        (words("reason"), said.reason),
    ]
    return tag(
        "div",
        tag("p", tag("b", said.title), tag("small", verdict.code)),
        tag("dl", [[tag("dt", name), tag("dd", text)] for name, text in pairs]),
        class_="box verdict",
    )
