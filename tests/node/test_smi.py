"""Every recorded format of the card tools gives its facts; cut, noisy or foreign text gives fewer, never a crash."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.node import smi

CASES = {
    path.stem: json.loads(path.read_text())
    for path in sorted((Path(__file__).parents[1] / "cases" / "smi").glob("*.json"))
}
TEXTS = ["\n".join(case["text"]) for case in CASES.values()]
PARSERS = [
    smi.read_cards,
    smi.read_driver_version,
    smi.read_processes,
    smi.read_rocminfo,
    smi.read_nvidia,
    smi.read_nvidia_gauges,
]
NOISE = "\x1b[31mlibibverbs: Warning: no userspace device\x1b[0m\nWARNING: x\r\n"


def test_the_cases_are_there():
    assert len(CASES) >= 20


@pytest.mark.parametrize("name", CASES)
def test_recorded_texts(name):
    case = CASES[name]
    parse = getattr(smi, case["parser"])
    text = "\n".join(case["text"])
    assert parse(text) == case["expect"]
    assert parse(NOISE + text.replace("\n", "\r\n") + "\n" + NOISE) == case["expect"]


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@given(text=st.one_of(st.text(max_size=300), st.sampled_from(TEXTS).flatmap(
    lambda text: st.integers(0, len(text)).map(lambda end: text[:end]))))  # fmt: skip
def test_nothing_makes_a_parser_fail(parse, text):
    parse(text)


@given(text=st.sampled_from(TEXTS), start=st.integers(0, 2000), garbage=st.text(max_size=40))
def test_garbage_in_the_middle_adds_no_facts_of_known_cards(text, start, garbage):
    broken = text[:start] + "\n" + garbage.replace("\n", " ") + "\n" + text[start:]
    for card in smi.read_cards(broken):
        assert {type(value) for value in card.values()} <= {int, float, str}


@given(st.sampled_from(TEXTS), st.integers(0, 4000))
def test_a_text_that_is_cut_tells_no_other_percentages(text, end):
    whole = {card["index"]: card for card in smi.read_cards(text)}
    for card in smi.read_cards(text[:end]):
        if card["index"] in whole and "used_percent" in card:
            assert card["used_percent"] == whole[card["index"]].get("used_percent")


def test_facts_of_several_texts_are_merged():
    table = smi.read_cards("HCU Temp VRAM% HCU% Mode\n0 60.0C 85% 0.0% Normal")
    facts = smi.read_cards('{"card0": {"Card Series": "BW"}, "card1": {"Card Series": "BW"}}')
    assert smi.merge_cards(facts, table) == [
        {"index": 0, "model": "BW", "used_percent": 85.0, "busy_percent": 0.0, "temp_c": 60.0},
        {"index": 1, "model": "BW"},
    ]
