"""``0,8-11`` -> ranks. Runs on the head; pure."""

from __future__ import annotations

from launcher.base.errors import UsageError


def read_ranks(text: str | None, world_size: int, option: str = "--ranks") -> frozenset[int] | None:
    """Ranks named by an option; None: all.

    Raises:
        UsageError: the list is not one, or names a rank that does not exist.
    """
    if text is None:
        return None
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if not _is_number(first) or (last and not _is_number(last)):
            raise UsageError(f"{option} {text}: expected numbers and ranges, such as 0,8-11")
        lowest, highest = int(first), int(last or first)
        if lowest > highest:
            raise UsageError(f"{option} {text}: {part.strip()} counts down; expected {highest}-{lowest}")
        if highest >= world_size:
            raise UsageError(f"{option} {text}: there are ranks 0 to {world_size - 1} only")
        ranks.update(range(lowest, highest + 1))
    return frozenset(ranks)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
