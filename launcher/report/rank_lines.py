"""Raw bytes of one rank -> the lines a terminal shows. Runs on the head; nothing here writes anywhere.

Split at ``\\n`` alone: ``str.splitlines`` would also split at U+2028 and others, which are text. The log
files keep every byte; this is about what a person sees.
"""

from __future__ import annotations

import codecs
import re

#: characters of an unfinished line after which a piece of it is shown; a line may be longer than memory
MAX_PIECE = 32 * 1024
#: seconds after which an unfinished line is shown as far as it came
PARTIAL_S = 1.0
#: a progress bar is shown this often at first, then half as often each time, down to the second figure
REFRESH_S = (1.0, 30.0)

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_ESCAPE = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, erase
    r"|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC, DCS and other strings
    r"|[ -/]*[0-Z\\`-~]"  # two or three characters
    r")"
)
# also the marks that turn the direction of text: a line must not show as another than it is
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_OPEN_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)?\Z")


def clean_line(text: str, color: bool) -> str:
    """The line without what would move the cursor; colours stay if ``color``, and end with the line."""
    if text.isprintable():
        return text
    if not color or "\x1b" not in text:
        return _CONTROL.sub("", _ESCAPE.sub("", text))
    colors = _SGR.findall(text)
    parts = [_CONTROL.sub("", _ESCAPE.sub("", part)) for part in _SGR.split(text)]
    joined = "".join(part + code for part, code in zip(parts, [*colors, ""], strict=True))
    is_open = bool(colors) and colors[-1] not in ("\x1b[m", "\x1b[0m")
    return joined + "\x1b[0m" if is_open else joined


class RankLines:
    """Cuts what one rank writes into lines.

    A line that a carriage return rewrites (a progress bar) counts by its last state. An unfinished line is
    given out in pieces: by ``overdue`` once it is PARTIAL_S old, by ``feed`` when longer than MAX_PIECE.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""  # since the last newline, after the last carriage return, without pieces given out
        self._is_bar = False
        self._is_cut = False
        self._since: float | None = None
        self._shown: str | None = None
        self._refresh_s = REFRESH_S[0]

    @property
    def bar(self) -> str | None:
        """The present state of a progress bar, or None when the line is not one."""
        return _last_state(self._text) if self._is_bar else None

    def feed(self, data: bytes) -> list[str]:
        """Take bytes as they came, return the lines that are complete now."""
        return self._feed_text(self._decoder.decode(data))

    def overdue(self, now: float, refresh_bars: bool = True) -> list[str]:
        """What of an unfinished line is to be shown at ``now`` (seconds; the same clock at each call)."""
        if not self._text:
            self._since = None
            return []
        if self._since is None:
            self._since = now
            return []
        if now - self._since < (self._refresh_s if self._is_bar else PARTIAL_S):
            return []
        self._since = now
        if not self._is_bar:
            return self._take_piece(len(self._text))
        if not refresh_bars:
            return []
        state = _last_state(self._text)
        if state == self._shown or not state.strip():
            return []
        self._shown = state
        self._refresh_s = min(2 * self._refresh_s, REFRESH_S[1])
        return [state]

    def close(self) -> list[str]:
        """The rest, when nothing more will come."""
        lines = self._feed_text(self._decoder.decode(b"", True))
        return lines + (self._end_line() if self._text else [])

    def _feed_text(self, text: str) -> list[str]:
        lines: list[str] = []
        first, *rest = text.split("\n")
        self._append(first, lines)
        for part in rest:
            lines += self._end_line()
            self._append(part, lines)
        return lines

    def _append(self, part: str, lines: list[str]) -> None:
        for start in range(0, len(part), MAX_PIECE):
            self._append_some(part[start : start + MAX_PIECE], lines)

    def _append_some(self, part: str, lines: list[str]) -> None:
        self._text += part
        if "\r" in self._text:
            state = _last_state(self._text)
            # a lone carriage return at the very end may be half of \r\n
            if len(state) < len(self._text.rstrip("\r")):
                self._is_bar = True
                self._text = state + ("\r" if self._text.endswith("\r") else "")
        while len(self._text) > MAX_PIECE:
            lines += self._take_piece(MAX_PIECE)

    def _take_piece(self, size: int) -> list[str]:
        piece = self._text[:size]
        unfinished = _OPEN_ESCAPE.search(piece[-256:]) if "\x1b" in piece[-256:] else None
        if unfinished and len(unfinished[0]) < len(piece):
            piece = piece[: len(piece) - len(unfinished[0])]
        self._text = self._text[len(piece) :]
        self._is_cut = True
        piece = _last_state(piece)
        return [piece] if piece else []

    def _end_line(self) -> list[str]:
        line = _last_state(self._text)
        is_told = line == self._shown or (self._is_bar and not line.strip()) or (self._is_cut and not line)
        self._text, self._since, self._shown = "", None, None
        self._is_bar = self._is_cut = False
        self._refresh_s = REFRESH_S[0]
        return [] if is_told else [line]


def _last_state(text: str) -> str:
    return text.rstrip("\r").rpartition("\r")[2]
