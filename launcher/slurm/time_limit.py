"""A job's time limit, and how long before it ranks are asked to save. Pure. Runs on the head."""

from __future__ import annotations

import re

from launcher.base.errors import UsageError

#: usual time to save and end in; a fifth of a short limit instead
SAVE_BEFORE_S = 300
#: the longest that Slurm's --signal takes
LONGEST_S = 65535
_SECONDS = re.compile(r"(\d{1,9})([smh]?)", re.ASCII)
_DAYS = re.compile(r"(\d{1,5})-(\d{1,2})(?::(\d{1,2})(?::(\d{1,2}))?)?", re.ASCII)
_CLOCK = re.compile(r"(\d{1,9})(?::(\d{1,2})(?::(\d{1,2}))?)?", re.ASCII)


def parse_time(text: str) -> int | None:
    """Seconds of a limit as Slurm writes it: ``90`` (minutes), ``1:30:00``, ``2-12``, ``2-12:00:00``; None: no limit.

    Raises:
        UsageError: it is no such time.
    """
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    days = _DAYS.fullmatch(text)
    clock = _CLOCK.fullmatch(text)
    if days:
        number, hours, minutes, seconds = (int(part or 0) for part in days.groups())
        return ((number * 24 + hours) * 60 + minutes) * 60 + seconds
    if not clock:
        raise UsageError(
            f"--time {text}: not a time as Slurm writes it", "minutes, H:MM:SS or D-HH:MM:SS, as in 12:00:00"
        )
    first, second, third = (None if part is None else int(part) for part in clock.groups())
    if third is not None:
        return ((first or 0) * 60 + (second or 0)) * 60 + third
    return (first or 0) * 60 + (second or 0)


def pick_save_time(asked: str | None, time_s: int | None) -> int:
    """Seconds before the limit at which ranks are asked to save; 0: they are not.

    Args:
        asked: what the user wants, as in ``300`` or ``5m``; None: the usual.
        time_s: the limit, where it is known.

    Raises:
        UsageError: it is no number of seconds, or the limit is not longer than that.
    """
    if asked is None:
        return SAVE_BEFORE_S if time_s is None else max(1, min(SAVE_BEFORE_S, time_s // 5))
    matched = _SECONDS.fullmatch(asked)
    if matched is None:
        raise UsageError(f"--save-before-limit {asked}: expected seconds, as in 300, 300s or 5m")
    asked_s = int(matched[1]) * {"m": 60, "h": 3600}.get(matched[2], 1)
    if asked_s > LONGEST_S:
        raise UsageError(f"--save-before-limit {asked}: Slurm takes {LONGEST_S} s at most")
    if time_s is not None and asked_s >= time_s > 0:
        raise UsageError(
            f"--save-before-limit {asked}: the whole job has {time_s} s", "a longer --time, or save later"
        )
    return asked_s


def pick_save_grace(save_before_s: int) -> int:
    """Seconds of these that ranks have: the rest is for the end of dcu-launch and the word to Slurm."""
    return max(1, save_before_s - min(30, save_before_s // 4))
