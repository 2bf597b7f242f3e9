"""Lines at the foot of a terminal, redrawn in place, below text that scrolls. Runs on the head.

Text and lines go out in one write: what was drawn is taken back, the text takes its place, the lines follow it. So text is
whole lines that scroll up as ever, and a terminal never shows half of either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

#: more text than this does not wait for the next drawing
MOST_WAITING = 64 * 1024


class Foot:
    """Draws and takes back; knows what of its own is on the screen.

    Args:
        write: takes text for the terminal, in order.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._waiting: list[str] = []
        self._size = 0
        self._drawn: list[int] = []

    @property
    def has_text(self) -> bool:
        """Whether text waits to be shown above the lines."""
        return bool(self._waiting)

    def say(self, text: str) -> None:
        """Show whole lines above, with the next drawing, or now if that is much."""
        self._waiting.append(text)
        self._size += len(text)
        if self._size > MOST_WAITING:
            self.clear()

    def draw(self, lines: Sequence[str], columns: int) -> None:
        """Show all text and, below it, these lines in place of the last ones.

        Args:
            columns: width of the terminal now; no line is as wide.
        """
        back = self._go_back(columns)
        text = self._take_text()
        # lines over lines need no erasing before: nothing flickers
        before = back + ("\x1b[J" + text if text else "")
        self._write(before + "\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
        self._drawn = [_cell_len(line) for line in lines]

    def clear(self, columns: int = 0) -> None:
        """Take the lines back and show all text."""
        back = self._go_back(columns) + "\x1b[J" if self._drawn else ""
        text = back + self._take_text()
        self._drawn = []
        if text:
            self._write(text)

    def _go_back(self, columns: int) -> str:
        """To the first column of the first line drawn; a terminal made narrower since has folded them."""
        if not self._drawn:
            return ""
        rows = sum(max(1, -(-width // columns)) if columns else 1 for width in self._drawn)
        return "\r" + (f"\x1b[{rows - 1}A" if rows > 1 else "")

    def _take_text(self) -> str:
        text = "".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        return text


def _cell_len(line: str) -> int:
    """Columns that a line takes on the screen, its colours not counted."""
    from rich.text import Text

    return Text.from_ansi(line).cell_len
