"""What a run shows while it runs: ranks' output, the head's own lines, progress. Runs on the head.

In come raw bytes of ranks and the clock of the head's loop; out goes text that names who said what. Called
from one thread, never waits for the terminal.
"""

from __future__ import annotations

import os
import shutil
import time
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

from launcher.launch.board import NodeRow
from launcher.report.fold import FoldedLine, LineFold, format_ranks
from launcher.report.foot import Foot
from launcher.report.outlet import Outlet
from launcher.report.panel import Look, draw_panel
from launcher.report.picture import Picture
from launcher.report.progress import INTERVAL_S, Progress
from launcher.report.rank_lines import RankLines, clean_line

#: seconds that ``close`` waits for a terminal that takes nothing
DRAIN_S = 5.0
#: how often the panel is drawn anew when nothing is said; and a step's line goes above it
DRAW_EVERY_S = 0.5
STEP_EVERY_S = 60.0

_ERASE_LINE = "\r\x1b[K"


class TerminalView:
    """Shows a run on a stream, line by line; on a terminal one last line may be redrawn in place.

    Args:
        hosts_of_ranks: the name of each rank's host.
        ranks: ranks whose output is shown; None for all.
        color: whether prefixes are coloured and colours of ranks' output pass.
        total_steps: optimizer steps of the run, None when not known.
        live: whether the last line may be redrawn; None: if the stream is a terminal that can.
        picture: what a panel at the foot of such a terminal shows, where there is room for it; None: no panel.
    """

    def __init__(
        self,
        stream: TextIO,
        *,
        hosts_of_ranks: Sequence[str],
        ranks: frozenset[int] | None,
        color: bool,
        total_steps: int | None,
        live: bool | None = None,
        picture: Picture | None = None,
    ) -> None:
        self._outlet = Outlet(stream)
        self._color = color
        shown = [rank for rank in range(len(hosts_of_ranks)) if ranks is None or rank in ranks]
        self._labels = {rank: f"[{hosts_of_ranks[rank]}:{rank}]" for rank in shown}
        self._width = max((len(label) for label in self._labels.values()), default=0)
        self._lines = {rank: RankLines() for rank in shown}
        self._fold = LineFold(len(shown))
        self._progress = Progress(total_steps)
        self._can_redraw = _can_redraw(stream) if live is None else live
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self._picture = picture if self._can_redraw else None
        self._foot: Foot | None = None
        self._panel: list[str] = []
        self._panel_look: Look | None = None
        self._next_draw = 0.0
        self._live_text = ""
        self._live_wanted = ""
        self._is_closed = False

    @property
    def is_broken(self) -> bool:
        """Whether nobody can read it any more: a closed pipe, a lost terminal."""
        return self._outlet.is_broken

    def rank_output(self, rank: int, data: bytes) -> None:
        """Take bytes of a rank's merged stdout and stderr, as they came."""
        lines = self._lines.get(rank)
        if lines is None or self._is_closed:
            return
        for line in lines.feed(data):
            self._fold.add(rank, clean_line(line, self._color))
            self._show_folded(self._fold.take_complete())

    def tick(self, now: float) -> None:
        """Show what has waited long enough; called some ten times a second.

        Args:
            now: seconds of a clock that never goes back.
        """
        if self._is_closed:
            return
        for rank, lines in self._lines.items():
            for line in lines.overdue(now, refresh_bars=not self._can_redraw):
                self._fold.add(rank, clean_line(line, self._color))
        self._show_folded(self._fold.take_old(now))
        self._show(self._progress.take_line(now))
        if not self._draw_panel(now):
            self._draw_live()

    def status(self, text: str) -> None:
        """Show a line of the head's own, after all whole lines that ranks said before it."""
        self._show_folded(self._fold.take_all())
        for line in text.split("\n"):
            self._show(f"dcu-launch: {line}")

    def metric(self, step: int, data: dict[str, Any]) -> None:
        """Show one row of metrics.jsonl; of a long run, only some rows stay on the screen."""
        if self._picture is not None:
            self._picture.add_row(step, data)
        self.show_row(step, data)

    def show_row(self, step: int, data: dict[str, Any]) -> None:
        """Show a row whose figures the panel has already."""
        self._show(self._progress.add(step, data))

    def nodes(self, rows: Sequence[NodeRow]) -> None:
        """Take how the nodes do; only the panel shows them."""
        if self._picture is not None:
            self._picture.nodes = rows

    def close(self) -> None:
        """Show all that is still held and wait a moment until the terminal took it."""
        if self._is_closed:
            return
        for rank, lines in self._lines.items():
            for line in lines.close():
                self._fold.add(rank, clean_line(line, self._color))
        self._show_folded(self._fold.take_all())
        self._show(self._progress.close())
        self._end_panel()
        self._write("")
        self._is_closed = True
        self._outlet.close(DRAIN_S)

    def _show_folded(self, lines: Sequence[FoldedLine]) -> None:
        text = "".join(f"{self._format_prefix(line.ranks)} {line.text}\n" for line in lines)
        if text:
            self._write(text)

    def _format_prefix(self, ranks: Sequence[int]) -> str:
        label = self._labels[ranks[0]] if len(ranks) == 1 else f"[ranks {format_ranks(ranks)}]"
        padding = " " * (self._width - len(label))
        return f"\x1b[36m{label}\x1b[0m{padding}" if self._color else label + padding

    def _show(self, line: str) -> None:
        if line:
            self._write(line + "\n")

    def _write(self, text: str) -> None:
        if self._foot is not None:
            self._foot.say(text)
            return
        if self._live_text:
            text = _ERASE_LINE + text
            self._live_text = ""
        self._outlet.write(text)

    def _draw_panel(self, now: float) -> bool:
        """Draw the panel when it is time; False when there is none."""
        size = shutil.get_terminal_size()
        look = Look(size.columns, size.lines, self._color, self._encoding)
        if self._picture is None or not look.is_large_enough:
            self._end_panel()
            return False
        if self._foot is None:
            self._write("")  # takes back the one line
            self._foot = Foot(self._outlet.write)
            self._progress.interval_s = STEP_EVERY_S
        if self._outlet.is_stalled or (now < self._next_draw and not self._foot.has_text):
            return True
        if now >= self._next_draw or look != self._panel_look:  # text alone is no reason to draw all anew
            self._next_draw, self._panel_look = now + DRAW_EVERY_S, look
            bar = _cut_to_width(self._find_bar(), look.columns - 1)
            lines = draw_panel(self._picture, time.time() - self._picture.started, look)
            self._panel = [bar, *lines] if bar else lines
        self._foot.draw(self._panel, look.columns)
        return True

    def _end_panel(self) -> None:
        if self._foot is not None:
            self._foot.clear(shutil.get_terminal_size().columns)
            self._foot = None
            self._progress.interval_s = INTERVAL_S

    def _draw_live(self) -> None:
        if not self._can_redraw or self._outlet.is_stalled:
            return
        text = _cut_to_width(self._progress.line or self._find_bar(), shutil.get_terminal_size().columns - 1)
        if text != self._live_text:
            self._outlet.write((_ERASE_LINE if self._live_text else "") + text)
            self._live_text = text

    def _find_bar(self) -> str:
        for rank, lines in self._lines.items():
            if lines.bar:
                return f"{self._labels[rank]} {clean_line(lines.bar, color=False).strip()}"
        return ""


def _can_redraw(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _cut_to_width(text: str, columns: int) -> str:
    """The start of the text that fits on one line; Chinese characters take two columns."""
    width = 0
    for index, character in enumerate(text):
        width += (
            0 if unicodedata.combining(character) else 1 + (unicodedata.east_asian_width(character) in "WF")
        )
        if width > columns:
            return text[:index]
    return text
