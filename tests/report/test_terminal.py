from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.terminal import TerminalView, _cut_to_width

HOSTS = ("node00", "node00", "node01", "node01")


def make_view(stream: io.StringIO, hosts: Sequence[str] = HOSTS, **options: Any) -> TerminalView:
    settings: dict[str, Any] = {"ranks": None, "color": False, "total_steps": None, **options}
    return TerminalView(stream, hosts_of_ranks=hosts, **settings)


def lines_of_rank(shown: str, rank: int) -> list[str]:
    """What a reader takes for the lines of one rank."""
    lines = []
    for line in shown.split("\n")[:-1]:
        label, _, text = line.partition("] ")
        label = label.removeprefix("[")
        named = label.removeprefix("ranks ") if label.startswith("ranks ") else label.rpartition(":")[2]
        ranks: set[int] = set()
        for part in named.split(","):
            first, _, last = part.partition("-")
            ranks |= set(range(int(first), int(last or first) + 1))
        if rank in ranks:
            lines.append(text)
    return lines


def test_each_line_names_host_and_rank_in_even_columns() -> None:
    stream = io.StringIO()
    view = make_view(stream, ["node01"] * 12)
    view.rank_output(3, b"three\n")
    view.rank_output(11, "十一\n".encode())
    view.close()
    assert stream.getvalue() == "[node01:3]  three\n[node01:11] 十一\n"


def test_equal_lines_of_several_ranks_are_shown_once() -> None:
    stream = io.StringIO()
    view = make_view(stream)
    for rank in (2, 0, 3, 1):
        view.rank_output(rank, b"loading model\n")
    assert stream.getvalue() == "[ranks 0-3] loading model\n"
    view.rank_output(0, b"a\n")
    view.rank_output(2, b"a\n")
    view.tick(1.0)
    view.tick(1.1)
    assert stream.getvalue().count("\n") == 1
    view.tick(1.21)
    assert stream.getvalue().split("\n")[1] == "[ranks 0,2] a"


def test_other_ranks_are_hidden_by_the_filter() -> None:
    stream = io.StringIO()
    view = make_view(stream, ranks=frozenset({2, 99}))
    for rank in range(4):
        view.rank_output(rank, b"same\n")
    assert stream.getvalue() == "[node01:2] same\n"
    view.close()


def test_a_hidden_run_still_shows_the_heads_own_lines() -> None:
    stream = io.StringIO()
    view = make_view(stream, ranks=frozenset())
    view.rank_output(0, b"x\n")
    view.status("waiting for node07 (ranks 8-15)")
    view.tick(1.0)
    view.close()
    assert stream.getvalue() == "dcu-launch: waiting for node07 (ranks 8-15)\n"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.text(st.sampled_from("ab坏\u2028 \t"), max_size=3),
            st.booleans(),
        ),
        max_size=40,
    ),
    st.data(),
)
def test_no_line_of_any_rank_is_lost_or_turned_round(
    said: list[tuple[int, str, bool]], data: st.DataObject
) -> None:
    stream = io.StringIO()
    view = make_view(stream)
    now = 0.0
    for rank, text, is_tick in said:
        raw = (text + "\n").encode()
        cut = data.draw(st.integers(0, len(raw)))
        view.rank_output(rank, raw[:cut])
        if is_tick:
            now += 0.15
            view.tick(now)
        view.rank_output(rank, raw[cut:])
    view.close()
    for rank in range(4):
        assert lines_of_rank(stream.getvalue(), rank) == [text for who, text, _ in said if who == rank]


def test_an_unfinished_line_appears_after_a_second() -> None:
    stream = io.StringIO()
    view = make_view(stream)
    view.rank_output(1, b"password? ")
    for tenth in range(13):
        view.tick(5.0 + tenth / 10)
        assert "password" not in stream.getvalue() or tenth >= 10
    view.tick(6.3)
    assert stream.getvalue() == "[node00:1] password? \n"


def test_status_comes_after_what_was_said_before_it() -> None:
    stream = io.StringIO()
    view = make_view(stream)
    view.rank_output(0, b"before\n")
    view.status("rank 0 failed\nsecond line")
    assert stream.getvalue() == "[node00:0] before\ndcu-launch: rank 0 failed\ndcu-launch: second line\n"


def test_colors_pass_or_are_stripped() -> None:
    plain, colored = io.StringIO(), io.StringIO()
    for stream, color in ((plain, False), (colored, True)):
        view = make_view(stream, color=color)
        view.rank_output(0, b"\x1b[31mred\x1b[2J\n")
        view.close()
    assert plain.getvalue() == "[node00:0] red\n"
    assert colored.getvalue() == "\x1b[36m[node00:0]\x1b[0m \x1b[31mred\x1b[0m\n"


def test_metrics_are_one_line_a_step() -> None:
    stream = io.StringIO()
    view = make_view(stream, total_steps=20)
    view.metric(1, {"loss": 3.5, "lr": 1e-4, "tokens_per_s": 1000.0, "step_s": 1.0})
    view.close()
    assert stream.getvalue() == "step  1/20  loss 3.5000  lr 1.0e-04  tokens/s 1,000  eta 0:00:19\n"


def screen(raw: str) -> list[str]:
    """The lines a terminal would show."""
    lines = [""]
    for part in re.split(r"(\n|\r\x1b\[K)", raw):
        if part == "\n":
            lines.append("")
        elif part == "\r\x1b[K":
            lines[-1] = ""
        else:
            lines[-1] += part
    return lines


def test_the_live_line_is_redrawn_and_never_mixed_with_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "28")
    stream = io.StringIO()
    view = make_view(stream, total_steps=1000, live=True)
    view.tick(0.0)
    for step in range(1, 5):
        view.metric(step, {"loss": 1.0, "lr": 1e-4, "tokens_per_s": 5.0})
        view.tick(step / 10)
        view.rank_output(0, f"line {step}\n".encode())
        view.tick(step / 10 + 0.01)
    assert screen(stream.getvalue())[-1] == "step    4/1000  loss 1.0000"
    view.close()
    assert screen(stream.getvalue()) == [
        "step    1/1000  loss 1.0000  lr 1.0e-04  tokens/s 5",
        *(f"[node00:0] line {step}" for step in range(1, 5)),
        "step    4/1000  loss 1.0000  lr 1.0e-04  tokens/s 5",
        "",
    ]


def test_a_progress_bar_lives_in_the_live_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    view = make_view(stream, live=True)
    for tenth in range(30):
        view.rank_output(2, b"\r %d0%%" % (tenth // 3))
        view.tick(tenth / 10)
    assert screen(stream.getvalue()) == ["[node01:2] 90%"]
    view.rank_output(2, b"\r 100%\n")
    view.close()
    assert screen(stream.getvalue()) == ["[node01:2]  100%", ""]


def test_without_a_terminal_nothing_is_redrawn() -> None:
    stream = io.StringIO()
    view = make_view(stream, total_steps=1000)
    for step in range(1, 5):
        view.metric(step, {"loss": 1.0})
        view.tick(float(step))
    view.close()
    assert "\r" not in stream.getvalue()
    assert stream.getvalue().split("\n") == ["step    1/1000  loss 1.0000", "step    4/1000  loss 1.0000", ""]


def test_closing_shows_the_rest_and_can_be_done_twice() -> None:
    stream = io.StringIO()
    view = make_view(stream)
    view.rank_output(0, b"no newline \xe5\x9d")
    view.close()
    view.close()
    view.rank_output(0, b"late\n")
    view.tick(9.0)
    assert stream.getvalue() == "[node00:0] no newline \ufffd\n"


def test_wide_characters_count_twice() -> None:
    assert _cut_to_width("ab坏数据", 6) == "ab坏数"
    assert _cut_to_width("ab坏数据", 5) == "ab坏"
    assert _cut_to_width("abc", 10) == "abc"
