"""Rules applied while a run goes on: a view that passes everything on and tells each verdict once. Runs on the head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from launcher.report.diagnosis.rules import RULES, put_into_words
from launcher.report.diagnosis.verdict import Verdict
from launcher.report.run_record import RunRecord

#: rows after which the rules look, and by how much there must be more before they look again
FIRST_LOOKS, GROWTH = (1, 3, 10, 20), 1.1
#: rows held; beyond that older ones behind the start are let go
MAX_ROWS, KEPT_START = 6000, 1000
#: ranks say it themselves while they read the rows, from a milder threshold on
_SAID_BY_RANKS = frozenset({"TEXT_SHREDDED"})
_KEYS = (
    "step", "loss", "eval_loss", "lr", "grad_norm", "step_s", "data_wait_s", "slowest_rank", "slowest_step_s",
    "median_step_s", "facts",
)  # fmt: skip


class View(Protocol):
    """Where a person sees the run."""

    def rank_output(self, rank: int, data: bytes) -> None: ...
    def status(self, text: str) -> None: ...
    def metric(self, step: int, data: dict[str, Any]) -> None: ...


class JudgingView:
    """A view in front of another one.

    Args:
        config: the run's recipe; ``plan``: its plan.
        tell: is given each verdict once, with a line for people.
    """

    def __init__(
        self,
        view: View,
        config: Mapping[str, Any],
        plan: Mapping[str, Any],
        tell: Callable[[Verdict, str], None],
    ) -> None:
        self._view, self._tell = view, tell
        self._record = RunRecord(Path(), "", "running", config=config, plan=plan)
        self._rows: list[dict[str, Any]] = []
        self._count, self._next = 0, FIRST_LOOKS[0]
        self._told: set[str] = set(_SAID_BY_RANKS)

    def rank_output(self, rank: int, data: bytes) -> None:
        """Pass it on."""
        self._view.rank_output(rank, data)

    def status(self, text: str) -> None:
        """Pass it on."""
        self._view.status(text)

    def metric(self, step: int, data: dict[str, Any]) -> None:
        """Pass it on, and look whether a rule has something to say."""
        self._view.metric(step, data)
        row = {"step": step, **data}
        self._rows.append({key: row[key] for key in _KEYS if key in row})
        self._count += 1
        if len(self._rows) > MAX_ROWS:
            del self._rows[KEPT_START : KEPT_START + MAX_ROWS // 3]
        if self._count < self._next and "eval_loss" not in data:
            return
        later = [count for count in FIRST_LOOKS if count > self._count]
        self._next = later[0] if later else round(self._count * GROWTH) + 1
        self._judge()

    def _judge(self) -> None:
        record = replace(self._record, metrics=self._rows)
        for code, rule in RULES.items():
            verdict = None if code in self._told else rule(record)
            if verdict is not None:
                self._told.add(code)
                self._tell(verdict, describe(verdict))


def describe(verdict: Verdict) -> str:
    """A verdict in one line, for the terminal and the events."""
    said = put_into_words(verdict, "en")
    return f"{said.title}: {said.evidence}. Try: {said.cure} ({verdict.code})"
