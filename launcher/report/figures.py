"""Numbers and durations as texts for people. Pure."""

from __future__ import annotations

import math


def format_number(value: float | None, digits: int = 4) -> str:
    """A number with so many digits that count; thousands apart, a dash for none."""
    if value is None or not math.isfinite(value):
        return "\u2013"
    if value == 0:
        return "0"
    size = abs(value)
    if size < 1e-3 or size >= 1e15:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(power)}"
    decimals = max(0, digits - 1 - math.floor(math.log10(size)))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def format_seconds(seconds: float | None) -> str:
    """``0:01:20``, with days before it where there are."""
    if seconds is None or not math.isfinite(seconds):
        return "\u2013"
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text
