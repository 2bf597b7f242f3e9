"""Verdict: a rule's word on a run, with the values that its text is made of in either language. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from launcher.report.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule found.

    Attributes:
        code: its name in the docs and the key of its texts.
        values: numbers and names for the texts, written out.
        step: where on the curve it shows, if at one place.
    """

    code: str
    values: Mapping[str, str] = field(default_factory=dict)
    step: int | None = None


#: a rule: None when there is nothing to say, also where the records do not hold what it needs
Rule = Callable[[RunRecord], Verdict | None]
