"""The live view: a run at a moment -> lines of text for the foot of a terminal. Runs on the head; pure.

From top to bottom: name, state and time; steps; loss and pace; a curve; nodes. What does not fit is left out, nodes last
and the healthy ones of them first.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from launcher.launch.board import NodeRow
from launcher.report.curve import can_encode, draw_points
from launcher.report.picture import Picture

#: a terminal that is smaller gets the one line alone
LEAST_COLUMNS, LEAST_ROWS = 50, 16
#: the panel takes at most this part of the terminal; above it ranks speak
MOST_SHARE = 0.55
MOST_COLUMNS = 120
BAR_COLUMNS = 30
STATE_STYLES = {
    "running": "green", "ended": "dim", "lost": "bold red", "failed": "bold red", "stopping": "yellow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Look:
    """How the terminal can show things.

    Attributes:
        columns, rows: of the terminal.
        encoding: of the stream; what it cannot say is drawn in ASCII.
    """

    columns: int
    rows: int
    color: bool
    encoding: str

    @property
    def is_large_enough(self) -> bool:
        """Whether there is room for a panel at all."""
        return self.columns >= LEAST_COLUMNS and self.rows >= LEAST_ROWS


def draw_panel(picture: Picture, elapsed_s: float, look: Look) -> list[str]:
    """The lines, none wider than the terminal.

    Args:
        elapsed_s: seconds since the run began.
    """
    width = min(look.columns - 1, MOST_COLUMNS)
    room = int(look.rows * MOST_SHARE)
    texts: list[Any] = [_title(picture, elapsed_s, width, look)]
    if picture.row:
        texts += [_steps(picture, width, look), *_figures(picture, width)]
    room -= len(texts)
    wanted = 1 + min(len(picture.nodes), 4) if picture.nodes else 0
    chart = _chart(picture, width, room - wanted, look)
    texts += chart
    room -= len(chart)
    if picture.nodes and room >= 2:
        texts.append(_nodes(picture.nodes, room - 1, look))
    return _to_lines(texts, width, look)


def _to_lines(texts: Sequence[Any], width: int, look: Look) -> list[str]:
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        width=width,
        color_system="standard" if look.color else None,
        force_terminal=look.color,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        for text in texts:
            console.print(text, no_wrap=True, overflow="crop", crop=True)
    lines = capture.get().split("\n")[:-1]
    return [line.encode(look.encoding, "replace").decode(look.encoding) for line in lines]


def _title(picture: Picture, elapsed_s: float, width: int, look: Look) -> Any:
    from rich.text import Text

    dash = "\u2500" if can_encode(look.encoding) else "-"
    text = Text(f"{dash}{dash} ", style="dim")
    text.append(picture.title, style="bold")
    hosts, ranks = len(picture.nodes), sum(node.num_ranks for node in picture.nodes)
    words = [f"{timedelta(seconds=int(elapsed_s))}"]
    if hosts:
        words.append(f"{hosts} node{'s' * (hosts > 1)}, {ranks} rank{'s' * (ranks > 1)}")
    text.append("  " + "  ".join(words) + " ")
    text.append(dash * max(0, width - text.cell_len), style="dim")
    return text


def _steps(picture: Picture, width: int, look: Look) -> Any:
    from rich.text import Text

    total = picture.total_steps
    if not total:
        epoch = picture.row.get("epoch")
        return Text(f"step {picture.step}" + (f"  epoch {epoch:.2f}" if isinstance(epoch, float) else ""))
    share = min(1.0, picture.step / total)
    full, rest = ("\u2501", "\u2500") if can_encode(look.encoding) else ("#", ".")
    columns = min(BAR_COLUMNS, max(10, width - 45))
    done = int(share * columns)
    text = Text(f"step {picture.step:>{len(str(total))}}/{total} ")
    text.append(full * done, style="cyan")
    text.append(rest * (columns - done), style="dim")
    text.append(f" {share:4.0%}")
    if picture.remaining_s:
        text.append(f"  eta {timedelta(seconds=round(picture.remaining_s))}")
    if picture.step_s:
        text.append(f"  {picture.step_s:.2f} s/step", style="dim")
    return text


def _figures(picture: Picture, width: int) -> list[Any]:
    from rich.text import Text

    row, text = picture.row, Text()
    loss = row.get("loss")
    text.append("loss ")
    text.append(f"{loss:.4f}" if isinstance(loss, int | float) else "nan", style="bold")
    if picture.evals:
        step, value = picture.evals[-1]
        text.append("  eval ")
        text.append(f"{value:.4f}", style="bold")
        best = picture.best_eval
        if best is not None and best[0] != step:
            text.append(f" (best {best[1]:.4f}, step {best[0]})", style="dim")
    if isinstance(row.get("lr"), int | float):
        text.append(f"  lr {row['lr']:.1e}")
    if isinstance(row.get("tokens_per_s"), int | float):
        text.append(f"  {row['tokens_per_s']:,.0f} tokens/s")
    slowest = picture.slowest
    if slowest is None:
        return [text]
    rank, host, count, steps = slowest
    style = "yellow" if picture.slowest_stands_out else "dim"
    last = Text(f"slowest: rank {rank} ({host}) in {count} of {steps} steps", style=style)
    if text.cell_len + 2 + last.cell_len > width:
        return [text, last]
    return [text.append("  ").append_text(last)]


def _chart(picture: Picture, width: int, room: int, look: Look) -> list[Any]:
    from rich.text import Text

    if room < 5 or len(picture.losses) < 2:
        return []
    chart = draw_points(picture.losses, picture.evals, width, min(room, 10), look.encoding)
    return [Text(line, style="cyan") for line in chart.split("\n")] if chart else []


def _nodes(nodes: Sequence[NodeRow], room: int, look: Look) -> Any:
    """A table of at most ``room`` rows below its heads: what is not as it should be first."""
    from rich.table import Table

    shown = _choose(nodes, room)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for head in ("node", "state", "ranks"):
        table.add_column(head, no_wrap=True)
    for head in ("memory", "use", "temp"):
        table.add_column(head, justify="right", no_wrap=True)
    for node in shown:
        ranks = f"{node.first_rank}-{node.first_rank + node.num_ranks - 1}"
        style = STATE_STYLES.get(node.state, "")
        state = f"[{style}]{node.state}[/]" if style else node.state
        from rich.text import Text

        table.add_row(
            node.host,
            Text.from_markup(state),
            ranks if node.num_ranks != 1 else str(node.first_rank),
            *describe_load(node),
        )
    left = len(nodes) - len(shown)
    if left:
        states = sorted({node.state for node in nodes} - {node.state for node in shown})
        told = ", ".join(sorted({node.state for node in nodes if node not in shown} | set(states)))
        table.add_row(f"and {left} more", told)
    return table


def _choose(nodes: Sequence[NodeRow], room: int) -> list[NodeRow]:
    if len(nodes) <= room:
        return list(nodes)
    order = ["lost", "failed", "stopping", "starting", "loading", "ready", "running", "ended"]
    urgent = sorted(
        range(len(nodes)), key=lambda n: (order.index(nodes[n].state) if nodes[n].state in order else 0, n)
    )
    return [nodes[n] for n in sorted(urgent[: max(1, room - 1)])]


def describe_load(node: NodeRow) -> tuple[str, str, str]:
    """Memory, use and temperature: of the cards, the fullest, all, the hottest; of the host where there is no card."""
    if not node.cards:
        memory = _of_gib(node.used_mib, node.memory_mib)
        use = f"{node.cpu_percent:.0f}%" if node.cpu_percent is not None else ""
        return (f"host {memory}" if memory else ""), (f"cpu {use}" if use else ""), ""
    fullest = max(node.cards, key=lambda card: card.get("used_mib") or card.get("used_percent") or 0)
    memory = _of_gib(fullest.get("used_mib"), fullest.get("memory_mib"))
    if not memory and "used_percent" in fullest:
        memory = f"{fullest['used_percent']:.0f}%"
    busy = [card["busy_percent"] for card in node.cards if "busy_percent" in card]
    use = "" if not busy else f"{min(busy):.0f}-{max(busy):.0f}%"
    if busy and round(min(busy)) == round(max(busy)):
        use = f"{busy[0]:.0f}%"
    hottest = max((card["temp_c"] for card in node.cards if "temp_c" in card), default=None)
    return memory, use, "" if hottest is None else f"{hottest:.0f} C"


def _of_gib(used: int | None, total: int | None) -> str:
    return f"{used / 1024:.1f}/{total / 1024:.0f} GiB" if used is not None and total else ""
