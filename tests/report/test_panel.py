"""The live view: what it says, at every size and encoding; below what ranks say, never mixed with it."""

from __future__ import annotations

import io
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.launch.board import NodeRow
from launcher.node.gauges import read_tool
from launcher.report.foot import Foot
from launcher.report.panel import Look, describe_load, draw_panel
from launcher.report.picture import MOST_POINTS, Picture
from launcher.report.terminal import TerminalView
from tests.report.screen import Screen

CASES = Path(__file__).parents[1] / "cases" / "smi"
CARD = {"index": 0, "memory_mib": 65536, "used_mib": 52736, "busy_percent": 96.0, "temp_c": 61.0}


def make_picture(num_nodes: int = 2, steps: int = 430, total: int | None = 1000) -> Picture:
    picture = Picture(
        "20260301-lora", total, time.time(), [f"node{n // 8 + 1:02d}" for n in range(8 * num_nodes)]
    )
    noise = random.Random(1)
    for step in range(1, steps + 1):
        row: dict[str, Any] = {
            "loss": 2.6 * math.exp(-step / 200) + 1.1,
            "lr": 2e-4,
            "tokens_per_s": 142233.4,
        }
        row |= {"step_s": 3.0, "slowest_rank": 7 if noise.random() < 0.8 else 3}
        if step % 50 == 0:
            row["eval_loss"] = 1.5 + abs(step - 250) / 1000
        picture.add_row(step, row)
    picture.nodes = [
        NodeRow(
            f"node{n + 1:02d}",
            8 * n,
            8,
            "lost" if n == 5 else "running",
            [CARD, {**CARD, "busy_percent": 98.0}],
        )
        for n in range(num_nodes)
    ]
    return picture


def test_all_of_it_in_a_usual_terminal() -> None:
    lines = draw_panel(make_picture(), 4000.0, Look(100, 40, False, "utf-8"))
    assert lines[0].startswith("── 20260301-lora  1:06:40  2 nodes, 16 ranks ──")
    assert lines[1].split() == [
        "step",
        "430/1000",
        "━" * 12 + "─" * 18,
        "43%",
        "eta",
        "0:28:30",
        "3.00",
        "s/step",
    ]
    assert lines[2].startswith(
        "loss 1.4029  eval 1.6500 (best 1.5000, step 250)  lr 2.0e-04  142,233 tokens/s"
    )
    assert lines[3].startswith("slowest: rank 7 (node01) in ")
    assert [line.split() for line in lines[-3:]] == [
        ["node", "state", "ranks", "memory", "use", "temp"],
        ["node01", "running", "0-7", "51.5/64", "GiB", "96-98%", "61", "C"],
        ["node02", "running", "8-15", "51.5/64", "GiB", "96-98%", "61", "C"],
    ]
    assert sum("●" in line for line in lines) > 2


@pytest.mark.parametrize(
    ("name", "known_mib", "shown"),
    [
        ("table-dtk23", 16384, "n1 running 0-7 0.5/16 GiB 0% 31 C"),
        ("table-dtk24.04", 65536, "n1 running 0-7 0.0/64 GiB 0% 42 C"),
        ("table-dtk25.04", 65536, "n1 running 0-7 54.4/64 GiB 0-100% 60 C"),
        ("table-dtk26.04-bw", 65536, "n1 running 0-7 9.0/64 GiB 0% 39 C"),
        ("table-dtk26.04-bw", 0, "n1 running 0-7 14% 0% 39 C"),  # of how much is not known
        ("table-rocm4", 16384, "n1 running 0-7 1.9/16 GiB 0-7% 50 C"),
        ("nvidia-gauges", 0, "n1 running 0-7 70.2/140 GiB 97% 64 C"),
    ],
)
def test_what_card_tools_print_is_what_the_view_shows(name: str, known_mib: int, shown: str) -> None:
    text = "\n".join(json.loads((CASES / f"{name}.json").read_text())["text"])
    command = ["nvidia-smi", "--query-gpu"] if name.startswith("nvidia") else ["hy-smi"]
    known = [{"index": n, "memory_mib": known_mib} for n in range(8)] if known_mib else []
    picture = make_picture(1)
    picture.nodes = [NodeRow("n1", 0, 8, "running", read_tool(command, text, known))]
    line = " ".join(draw_panel(picture, 1.0, Look(100, 40, False, "utf-8"))[-1].split())
    assert line == shown


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "gb18030"])
@pytest.mark.parametrize(("columns", "rows"), [(50, 16), (80, 24), (132, 43), (300, 100)])
@pytest.mark.parametrize("num_nodes", [0, 1, 16, 128])
def test_it_fits_everywhere(columns: int, rows: int, num_nodes: int, encoding: str) -> None:
    picture = make_picture(num_nodes, steps=30)
    lines = draw_panel(picture, 4.0, Look(columns, rows, False, encoding))
    assert 3 <= len(lines) <= 0.55 * rows + 1
    assert max(map(len, lines)) < columns
    "\n".join(lines).encode(encoding)


def test_of_many_nodes_those_in_trouble_are_shown() -> None:
    lines = draw_panel(make_picture(16), 4000.0, Look(100, 32, False, "utf-8"))
    assert any(line.startswith("node06") and "lost" in line for line in lines)
    assert lines[-1].split()[:4] == ["and", "13", "more", "running"]


def test_before_the_first_step_there_are_nodes_alone() -> None:
    picture = Picture("train", None, time.time())
    picture.nodes = [NodeRow("a", 0, 1, "starting"), NodeRow("[b]", 1, 1, "running", (), 12.4, 24576, 4096)]
    lines = draw_panel(picture, 3.0, Look(80, 24, False, "utf-8"))
    assert len(lines) == 4
    assert lines[2].split() == ["a", "starting", "0"]
    assert lines[3].split() == ["[b]", "running", "1", "host", "4.0/24", "GiB", "cpu", "12%"]


def test_what_is_not_known_is_left_out() -> None:
    assert describe_load(NodeRow("a", 0, 1, "running")) == ("", "", "")
    assert describe_load(NodeRow("a", 0, 1, "running", [{"index": 0}])) == ("", "", "")
    assert describe_load(NodeRow("a", 0, 1, "running", [{"index": 0, "used_percent": 7.0}])) == ("7%", "", "")
    picture = Picture("train", None, time.time())
    picture.add_row(3, {"loss": None, "epoch": 0.5})
    assert draw_panel(picture, 3.0, Look(80, 24, False, "utf-8"))[1:] == ["step 3  epoch 0.50", "loss nan"]


def test_a_long_run_keeps_few_points_and_its_shape() -> None:
    picture = Picture("train", None, time.time())
    for step in range(1, 50_001):
        picture.add_row(step, {"loss": 1.0 if step <= 25_000 else 3.0})
    assert MOST_POINTS / 2 <= len(picture.losses) <= MOST_POINTS
    assert [loss for step, loss in picture.losses if step < 24_000] == pytest.approx([1.0] * sum(
        step < 24_000 for step, _ in picture.losses))  # fmt: skip
    assert picture.losses[-1][1] == 3.0
    assert picture.losses[-1][0] > 49_900


# -- at the foot


def test_text_scrolls_above_and_the_lines_stay_below() -> None:
    screen = Screen()
    foot = Foot(screen.feed)
    foot.draw(["one", "two", "three"], 80)
    foot.say("first\n")
    foot.say("second\n")
    assert screen.shown() == ["one", "two", "three"]
    foot.draw(["1", "2"], 80)
    assert screen.shown() == ["first", "second", "1", "2"]
    foot.draw(["longer", "2", "3"], 80)
    foot.say("third\n")
    foot.clear(80)
    assert screen.shown() == ["first", "second", "third", ""]


def test_a_terminal_made_narrower_has_folded_the_lines() -> None:
    said: list[str] = []
    foot = Foot(said.append)
    foot.draw(["x" * 100, "short"], 120)
    foot.draw(["y"], 60)
    assert said[-1].startswith("\r\x1b[2A")  # two rows of the long line, one of the short one


def test_much_text_does_not_wait_for_the_next_drawing() -> None:
    screen = Screen()
    foot = Foot(screen.feed)
    foot.draw(["panel"], 80)
    for number in range(7000):
        foot.say(f"line {number}\n")
    assert len(screen.lines) > 4000
    foot.draw(["panel"], 80)
    assert screen.shown() == [*(f"line {number}" for number in range(7000)), "panel"]


class Terminal(io.StringIO):
    """A stream in memory that a screen watches."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.screen = Screen(columns)

    def write(self, text: str) -> int:
        self.screen.feed(text)
        return len(text)


def test_a_run_on_a_terminal_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "30")
    terminal, picture = Terminal(80), Picture("train", 1000, time.time(), ["a", "b"])
    view = TerminalView(
        terminal,
        hosts_of_ranks=["a", "b"],
        ranks=None,
        color=True,
        total_steps=1000,
        live=True,
        picture=picture,
    )
    said = []
    for step in range(1, 60):
        now = step / 10
        view.nodes([NodeRow("a", 0, 1, "running"), NodeRow("b", 1, 1, "running")])
        view.rank_output(step % 2, f"line {step}\n".encode())
        said.append(f"[{'ab'[step % 2]}:{step % 2}] line {step}")
        view.metric(step, {"loss": 3.0 - step / 100, "step_s": 1.0})
        if step == 30:
            view.status("warning: a word of the head")
            said.append("dcu-launch: warning: a word of the head")
        view.tick(now)
    shown = terminal.screen.shown()
    found = [line for line in shown if line in said]
    assert found == said[: len(found)]
    assert len(found) >= len(said) - 3  # the last ones wait for equal lines of the other rank
    assert [line.split()[0] for line in shown[-2:]] == ["a", "b"]
    assert sum(line.startswith("── train") for line in shown) == 1
    monkeypatch.setenv("LINES", "10")  # made too small: the one line alone
    view.tick(7.0)
    assert terminal.screen.shown()[-1].startswith("step   59/1000  loss 2.4100")
    monkeypatch.setenv("LINES", "30")
    view.tick(8.0)
    view.close()
    shown = terminal.screen.shown()
    assert not any("train" in line or "━" in line for line in shown)
    assert [line for line in shown if line in said] == said
    assert [line for line in shown if line.startswith("step")][-1].startswith("step   59/1000")
