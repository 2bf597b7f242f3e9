"""Where a person sees a run, as ``supervise`` needs it; ``launcher.report.terminal.TerminalView`` is one."""

from __future__ import annotations

from typing import Any, Protocol


class View(Protocol):
    """Takes what ranks print, what the launcher has to say, and each step's figures."""

    def rank_output(self, rank: int, data: bytes) -> None: ...
    def status(self, text: str) -> None: ...
    def metric(self, step: int, data: dict[str, Any]) -> None: ...
