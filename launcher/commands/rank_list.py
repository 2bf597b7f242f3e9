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
        ranks.update(range(int(first), min(int(last or first), world_size) + 1))
    beyond = sorted(rank for rank in ranks if rank >= world_size)
    if beyond:
        raise UsageError(f"{option} {text}: there are ranks 0 to {world_size - 1} only")
    if not ranks:
        raise UsageError(f"{option} {text}: names no rank")
    return frozenset(ranks)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
