from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.rank_lines import MAX_PIECE, RankLines, clean_line


def feed_all(*chunks: bytes) -> list[str]:
    lines = RankLines()
    return [line for chunk in chunks for line in lines.feed(chunk)] + lines.close()


def test_lines_end_at_newline_alone() -> None:
    text = "a\u2028b\x0bc\x0cd\x1ce\u0085f\n\nlast"
    assert feed_all(text.encode()) == ["a\u2028b\x0bc\x0cd\x1ce\u0085f", "", "last"]


def test_a_character_cut_in_two_is_joined() -> None:
    data = "坏数据\n".encode()
    assert feed_all(*(bytes([byte]) for byte in data)) == ["坏数据"]


def test_bytes_that_are_no_text_are_shown_as_replacement() -> None:
    assert feed_all(b"a\xffb\n\xe5\x9d") == ["a\ufffdb", "\ufffd"]


@given(st.lists(st.text(st.characters(blacklist_characters="\r\n", blacklist_categories=["Cs"]))), st.data())
def test_whatever_the_chunks_the_lines_are_the_same(texts: list[str], data: st.DataObject) -> None:
    raw = "".join(text + "\n" for text in texts).encode()
    chunks = []
    while raw:
        size = data.draw(st.integers(1, len(raw)))
        chunks.append(raw[:size])
        raw = raw[size:]
    assert feed_all(*chunks) == texts


@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"bc", b"\r\n", b" "]), max_size=30), st.data())
def test_carriage_returns_read_the_same_in_any_chunks(parts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(parts)
    cut = data.draw(st.integers(0, len(raw)))
    assert feed_all(raw) == feed_all(raw[:cut], raw[cut:]) == feed_all(*(bytes([byte]) for byte in raw))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"\r 10%\r 50%\r100%\nnext\n", ["100%", "next"]),
        (b"10%\r50%\r100%\r\n", ["100%"]),
        (b"\r 10%\r       \rdone\n", ["done"]),
        (b"\r 10%\r       \r\nafter\n", ["after"]),
        (b"\r 10%", [" 10%"]),
    ],
)
def test_a_progress_bar_counts_by_its_last_state(data: bytes, expected: list[str]) -> None:
    assert feed_all(data) == expected


def test_an_unfinished_line_is_shown_after_a_second_and_not_again() -> None:
    lines = RankLines()
    assert lines.feed(b"loading ... ") == []
    assert lines.overdue(10.0) == []
    assert lines.overdue(10.9) == []
    assert lines.overdue(11.0) == ["loading ... "]
    assert lines.overdue(13.0) == []
    assert lines.feed(b"done\nnext\n") == ["done", "next"]
    assert lines.feed(b"x") == []
    lines.overdue(20.0)
    assert lines.overdue(21.0) == ["x"]
    assert lines.feed(b"\nnext\n") == ["next"]


def test_a_progress_bar_is_refreshed_ever_more_seldom() -> None:
    lines = RankLines()
    shown = []
    for second in range(200):
        assert lines.feed(b"\r%3d%%" % (second // 2)) == []
        assert lines.bar == f"{second // 2:3d}%"
        shown += [(second, line) for line in lines.overdue(float(second))]
    assert [second for second, _ in shown] == [1, 3, 7, 15, 31, 61, 91, 121, 151, 181]
    assert shown[1] == (3, "  1%")
    assert lines.feed(b"\r100%\n") == ["100%"]
    assert lines.bar is None


def test_a_bar_whose_last_state_was_shown_is_not_shown_twice() -> None:
    lines = RankLines()
    lines.feed(b"\r 99%\r100%")
    lines.overdue(0.0)
    assert lines.overdue(1.0) == ["100%"]
    assert lines.feed(b"\n") == []


def test_bars_are_held_back_where_the_terminal_redraws_them() -> None:
    lines = RankLines()
    lines.feed(b"\r 10%\r 20%")
    assert [lines.overdue(float(second), refresh_bars=False) for second in range(5)] == [[]] * 5


def test_a_line_longer_than_memory_comes_in_pieces_and_whole() -> None:
    text = "".join(f"{number}," for number in range(60_000)) + "坏"
    data = text.encode() + b"\nnext\n"
    pieces = feed_all(*(data[start : start + 50_000] for start in range(0, len(data), 50_000)))
    assert pieces[-1] == "next"
    assert "".join(pieces[:-1]) == text
    assert max(map(len, pieces)) <= MAX_PIECE


def test_a_bar_that_never_ends_takes_no_memory() -> None:
    lines = RankLines()
    for count in range(10_000):
        assert lines.feed(b"\r" + b"#" * 100 + b"%d" % count) == []
    assert len(lines._text) < 200


def test_an_escape_is_not_cut_in_two() -> None:
    lines = RankLines()
    lines.feed(b"red \x1b[3")
    lines.overdue(0.0)
    assert lines.overdue(1.0) == ["red "]
    assert [clean_line(line, False) for line in lines.feed(b"1mtext\x1b[0m\n")] == ["text"]


@pytest.mark.parametrize(
    ("text", "plain", "colored"),
    [
        ("plain 坏 \u2028", "plain 坏 \u2028", "plain 坏 \u2028"),
        ("a\tb", "a\tb", "a\tb"),
        ("\x1b[31mred\x1b[0m x", "red x", "\x1b[31mred\x1b[0m x"),
        ("\x1b[1;38:5:4mopen", "open", "\x1b[1;38:5:4mopen\x1b[0m"),
        ("\x1b[2J\x1b[H\x1b[Kclear\x1b[A", "clear", "clear"),
        ("\x1b]0;title\x07t \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "t link", "t link"),
        ("bell\x07 back\b nul\0 \x9b31m", "bell back nul 31m", "bell back nul 31m"),
        ("\x1b(B\x1b7\x1b8\x1b=x\x1b", "x", "x"),
    ],
)
def test_only_colors_pass_and_only_when_asked(text: str, plain: str, colored: str) -> None:
    assert clean_line(text, color=False) == plain
    assert clean_line(text, color=True) == colored


@given(st.text(), st.booleans())
def test_nothing_that_moves_the_cursor_passes(text: str, color: bool) -> None:
    cleaned = clean_line(text, color)
    assert not any(character < " " and character not in "\t\x1b" for character in cleaned)
    assert cleaned == clean_line(cleaned, color)


def test_marks_that_turn_the_direction_of_text_are_left_out() -> None:
    """Else a line could be shown as another than it is."""
    assert clean_line("rank 0 \u202elliw\u202c \u2066ok\u2069", color=False) == "rank 0 lliw ok"
