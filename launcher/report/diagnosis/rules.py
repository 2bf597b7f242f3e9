"""All rules in the order in which their verdicts are told, and verdicts in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.report.diagnosis import beginning, breakage, learning, speed, texts_en, texts_zh
from launcher.report.diagnosis.verdict import Rule, Verdict
from launcher.report.run_record import RunRecord

#: causes stand above what follows from them
RULES: Mapping[str, Rule] = {
    "CARD_ERROR": breakage.card_error,
    "NOTHING_TRAINED": learning.nothing_trained,
    "FIRST_LOSS_HIGH": beginning.first_loss_high,
    "TEXT_SHREDDED": beginning.text_shredded,
    "ROWS_ALIKE": beginning.rows_alike,
    "NOT_SHUFFLED": beginning.not_shuffled,
    "RATE_TOO_HIGH": learning.rate_too_high,
    "RATE_TOO_LOW": learning.rate_too_low,
    "VALIDATION_PARTS": learning.validation_parts,
    "SLOW_RANK": speed.slow_rank,
    "DATA_WAIT": speed.data_wait,
}
_TEXTS = {"en": texts_en.TEXTS, "zh": texts_zh.TEXTS}


@dataclass(frozen=True, slots=True)
class Words:
    """A verdict in one language, field by field."""

    title: str
    evidence: str
    threshold: str
    reason: str
    cure: str


def diagnose(record: RunRecord) -> list[Verdict]:
    """The verdicts of all rules on a run; none for a healthy one."""
    found = (rule(record) for rule in RULES.values())
    return [verdict for verdict in found if verdict is not None]


def put_into_words(verdict: Verdict, language: str) -> Words:
    """The verdict's texts; fields that depend on what was found are picked by its values."""
    texts = _TEXTS[language][verdict.code]
    values = verdict.values
    picked = {
        "evidence": texts.get("evidence") or texts[f"evidence.{values['what']}"],
        "cure": texts.get("cure") or texts[f"cure.{values['fallback']}"],
    }
    fields = {
        name: picked.get(name) or texts[name] for name in ("title", "evidence", "threshold", "reason", "cure")
    }
    return Words(**{name: text.format_map(values) for name, text in fields.items()})
