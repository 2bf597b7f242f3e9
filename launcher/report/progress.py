"""Rows of metrics -> the line that says how far a training is. Runs on the head; pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

#: runs up to this many steps show a line for each
SHORT_RUN = 200
#: seconds between the lines of a longer one
INTERVAL_S = 5.0


class Progress:
    """Chooses which rows are shown as lines of their own; ``line`` is the newest one of a long run.

    Attributes:
        interval_s: seconds between the lines of a long run.
    """

    def __init__(self, total_steps: int | None) -> None:
        # a recipe that counts epochs instead says 0 or -1
        self._total = total_steps if total_steps is not None and total_steps > 0 else None
        self._step_s: float | None = None
        self._held = ""
        self._last_shown: float | None = None
        self.interval_s = INTERVAL_S
        self.line = ""

    def add(self, step: int, data: dict[str, Any]) -> str:
        """Take a row; return the line to show now, or an empty text."""
        if self._total is None and (known := _number(data.get("num_steps"))):
            self._total = int(
                known
            )  # a recipe that counts epochs: the ranks know once they have read the rows
        step_s = _number(data.get("step_s"))
        if step_s is not None:
            # smoothed, so that the remaining time does not jump
            self._step_s = step_s if self._step_s is None else 0.9 * self._step_s + 0.1 * step_s
        line = format_row(step, self._total, data, self._remaining_s(step))
        if not line:
            return ""
        if _number(data.get("eval_loss")) is not None:
            self._held = ""  # older: it must not come after this one
            return line
        if self._total is not None and self._total <= SHORT_RUN:
            return line
        self.line = self._held = line
        return ""

    def take_line(self, now: float) -> str:
        """The newest row of a long run once ``interval_s`` have passed since the last one shown."""
        if not self._held or (self._last_shown is not None and now - self._last_shown < self.interval_s):
            return ""
        self._last_shown = now
        return self.close()

    def close(self) -> str:
        """The newest row if it was not shown yet."""
        line, self._held = self._held, ""
        return line

    def _remaining_s(self, step: int) -> float | None:
        if self._total is None or self._step_s is None:
            return None
        return max(0, self._total - step) * self._step_s


def format_row(step: int, total_steps: int | None, data: dict[str, Any], remaining_s: float | None) -> str:
    """``step 10/200  loss 1.2340  lr 2.0e-04  tokens/s 1,234  eta 0:01:20``; empty for an empty row."""
    parts = []
    for key, label, form in _SHOWN:
        value = _number(data.get(key))
        if value is not None:
            parts.append(f"{label} {value:{form}}")
        elif key in data and key.endswith("loss"):
            parts.append(f"{label} nan")
    if not parts:
        return ""
    width = len(str(total_steps))
    count = f"step {step}" if total_steps is None else f"step {step:>{width}}/{total_steps}"
    if remaining_s is not None and remaining_s > 0:
        parts.append(f"eta {timedelta(seconds=round(remaining_s))}")
    return "  ".join([count, *parts])


_SHOWN = (
    ("loss", "loss", ".4f"),
    ("eval_loss", "eval_loss", ".4f"),
    ("lr", "lr", ".1e"),
    ("tokens_per_s", "tokens/s", ",.0f"),
)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
