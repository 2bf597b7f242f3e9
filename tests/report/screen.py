"""What a terminal shows of a text: as much of one as the live view needs."""

from __future__ import annotations

import re


class Screen:
    """Lines of a terminal that never runs full; the cursor goes up, to the left and on."""

    def __init__(self, columns: int = 80) -> None:
        self.columns = columns
        self.lines = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        """Take a piece of output; colours are passed over."""
        for part in re.split(r"(\x1b\[[0-9;]*[A-Za-z]|\r|\n)", text):
            if part == "\n":
                self.row, self.column = self.row + 1, 0
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif part == "\r":
                self.column = 0
            elif part.startswith("\x1b["):
                self._obey(part[-1], part[2:-1])
            else:
                self._put(part)

    def _put(self, text: str) -> None:
        assert self.column + len(text) <= self.columns, f"the terminal would fold {text!r}"
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + text + line[self.column + len(text) :]
        self.column += len(text)

    def _obey(self, letter: str, number: str) -> None:
        if letter == "A":
            self.row -= int(number or 1)
            assert self.row >= 0
        elif letter in "KJ":
            self.lines[self.row] = self.lines[self.row][: self.column]
            if letter == "J":
                del self.lines[self.row + 1 :]
        else:
            assert letter == "m", letter

    def shown(self) -> list[str]:
        """The lines without blanks at their ends."""
        return [line.rstrip() for line in self.lines]
