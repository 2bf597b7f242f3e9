"""Equal lines of several ranks -> one line that names the ranks. Runs on the head, touches nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

#: seconds a line waits for the same line of other ranks
WINDOW_S = 0.2
#: lines held at most, however fast they come
MAX_HELD = 2000


@dataclass(slots=True)
class FoldedLine:
    """A line and the ranks that wrote it."""

    number: int
    text: str
    ranks: list[int]
    held_since: float | None = field(default=None)


class LineFold:
    """Holds lines for a moment and joins equal ones; every rank's lines keep their order and none is lost.

    Args:
        num_ranks: ranks that can write; a line that all of them wrote waits no longer.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._held: deque[FoldedLine] = deque()
        self._by_text: dict[str, list[FoldedLine]] = {}
        self._last_of_rank: dict[int, int] = {}
        self._count = 0

    def add(self, rank: int, text: str) -> None:
        """Take one line of one rank."""
        # Joining a line older than the rank's own last one would turn its order round.
        after = self._last_of_rank.get(rank, -1)
        same = self._by_text.setdefault(text, [])
        at = bisect_right(same, after, key=lambda held: held.number)
        if at < len(same):
            line = same[at]
        else:
            line = FoldedLine(self._count, text, [])
            self._count += 1
            same.append(line)
            self._held.append(line)
        line.ranks.append(rank)
        self._last_of_rank[rank] = line.number

    def take_complete(self) -> list[FoldedLine]:
        """Lines that need not wait: all ranks wrote them, or too many are held."""
        lines = []
        while self._held and (len(self._held[0].ranks) >= self._num_ranks or len(self._held) > MAX_HELD):
            lines.append(self._pop())
        return lines

    def take_old(self, now: float) -> list[FoldedLine]:
        """Lines that waited for WINDOW_S, counted from the first call that saw them."""
        lines = []
        for held in reversed(self._held):
            if held.held_since is not None:
                break
            held.held_since = now
        while self._held:
            since = self._held[0].held_since
            if since is None or now - since < WINDOW_S:
                break
            lines.append(self._pop())
        return lines + self.take_complete()

    def take_all(self) -> list[FoldedLine]:
        """Everything held."""
        return [self._pop() for _ in range(len(self._held))]

    def _pop(self) -> FoldedLine:
        line = self._held.popleft()
        same = self._by_text[line.text]
        same.pop(0)
        if not same:
            del self._by_text[line.text]
        return line


def format_ranks(ranks: Iterable[int]) -> str:
    """``0-2,5``: rank numbers as ranges."""
    parts: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if parts and rank == parts[-1][1] + 1:
            parts[-1][1] = rank
        else:
            parts.append([rank, rank])
    return ",".join(_format_range(first, last) for first, last in parts)


def _format_range(first: int, last: int) -> str:
    if first == last:
        return str(first)
    return f"{first},{last}" if last == first + 1 else f"{first}-{last}"
