"""The first word of a line, and folding and expanding of names."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.hosts.target import BadWord, Target, describe_char, expand_names, fold_names, parse_target


def test_parse_target():
    assert parse_target("bob@n[1-2]:23") == Target(("n1", "n2"), "bob", 23)


def test_expand_keeps_the_written_order():
    assert expand_names("n[10,01-02]a[5]") == ["n10a5", "n01a5", "n02a5"]
    assert expand_names("n[0-8/4]") == ["n0", "n4", "n8"]


def test_fold():
    assert fold_names(["node03", "node01", "node02", "login"]) == "login,node[01-03]"
    assert fold_names(["fd00::2", "fd00::1", "a1"]) == "a1,fd00::1,fd00::2"
    assert fold_names([]) == ""


@given(
    prefix=st.sampled_from(["node", "gpu-a", "10.0.0."]),
    width=st.integers(1, 3),
    numbers=st.sets(st.integers(0, 255), min_size=1, max_size=30),
)
def test_fold_and_expand_are_inverse(prefix: str, width: int, numbers: set[int]):
    names = {f"{prefix}{number:0{width}d}" for number in numbers}
    folded = fold_names(names)
    parts = folded.split(",") if "[" not in folded else _split_outside_brackets(folded)
    expanded = [name for part in parts for name in expand_names(part)]
    assert sorted(expanded) == sorted(names)


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return parts


@given(st.text(alphabet="n0123[]-,/:@.%", max_size=20))
def test_garbage_raises_nothing_but_bad_words(word: str):
    with suppress(BadWord):
        assert parse_target(word).names


@pytest.mark.parametrize(
    ("char", "text"), [("，", "U+FF0C"), ("a", "'a'"), ("\x00", "U+0000"), (" ", "U+0020")]
)
def test_describe_char(char: str, text: str):
    assert text in describe_char(char)
