"""The rows of the demo: enough of them, in both languages, each once, and fit to be learnt from."""

import itertools
import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "examples" / "dcu_instructions.jsonl"
DEMO_FILE = ROOT / "launcher" / "train" / "demo" / "rows.jsonl"


def read(path):
    return [json.loads(line) for line in path.read_bytes().decode("utf-8").split("\n") if line]


def is_chinese(text):
    return re.search("[\u4e00-\u9fff]", text) is not None


@pytest.fixture(scope="module")
def rows():
    return read(FILE)


def test_the_file_is_utf8_with_one_object_a_line():
    text = FILE.read_bytes().decode("utf-8")
    assert text.endswith("\n")
    assert not re.search("[\r\t\ufeff\ufffd\u2028\u2029\x00]", text)
    assert all(line.startswith("{") for line in text.rstrip("\n").split("\n"))


def test_at_least_300_rows_of_three_texts(rows):
    assert len(rows) >= 300
    for row in rows:
        assert list(row) == ["instruction", "input", "output"]
        assert all(type(value) is str and value == value.strip() for value in row.values())
        assert row["instruction"]
        assert row["output"]


def test_half_of_the_rows_are_chinese(rows):
    share = sum(is_chinese(row["output"]) for row in rows) / len(rows)
    assert 0.45 <= share <= 0.55


def test_a_question_is_answered_in_its_language(rows):
    assert [r["instruction"] for r in rows if is_chinese(r["instruction"]) != is_chinese(r["output"])] == []


def test_answers_are_neither_words_nor_essays(rows):
    lengths = [len(row["output"]) for row in rows]
    assert 150 <= statistics.mean(lengths) <= 400
    assert min(lengths) >= 60
    assert max(lengths) <= 600


def test_some_rows_bring_something_to_look_at(rows):
    assert sum(bool(row["input"]) for row in rows) >= 10


def test_no_row_is_there_twice(rows):
    assert len({(row["instruction"].casefold(), row["input"]) for row in rows}) == len(rows)
    assert len({row["output"] for row in rows}) == len(rows)


def pieces(text, size):
    text = re.sub(r"\s+", " ", text)
    return {text[start : start + size] for start in range(len(text) - size + 1)}


@pytest.mark.parametrize(("chinese", "size"), [(True, 6), (False, 20)])
def test_no_answer_is_another_one_with_words_swapped(rows, chinese, size):
    answers = [row["output"] for row in rows if is_chinese(row["output"]) == chinese]
    cut = [pieces(answer, size) for answer in answers]
    alike = [
        (answers[i], answers[j])
        for i, j in itertools.combinations(range(len(answers)), 2)
        if len(cut[i] & cut[j]) > 0.45 * min(len(cut[i]), len(cut[j]))
    ]
    assert alike == []


@pytest.mark.parametrize(
    "word",
    ["DCU", "DTK", "RCCL", "hy-smi", "Slurm", "LoRA", "freeze", "HSA_FORCE_FINE_GRAIN_PCIE", "wheel", "ssh"],
)
def test_each_subject_is_met_in_both_languages(rows, word):
    languages = [is_chinese(row["output"]) for row in rows if word in "".join(row.values())]
    assert languages.count(True) >= 2
    assert languages.count(False) >= 2


def test_rows_of_the_built_in_demo_are_some_of_these(rows):
    demo = read(DEMO_FILE)
    assert len(demo) >= 60
    assert all(row in rows for row in demo)
    assert 0.4 <= sum(is_chinese(row["output"]) for row in demo) / len(demo) <= 0.6
