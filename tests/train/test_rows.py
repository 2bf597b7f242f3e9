"""Files of rows as people really have them, and what is said about bad ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.errors import ConfigError
from launcher.train.rows import Turn, read_rows, read_turns

GOOD = {"instruction": "你好", "input": "", "output": "hello"}


def write(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def test_jsonl_with_bom_crlf_blank_lines_and_no_last_newline_reads_as_without(tmp_path):
    line = json.dumps(GOOD, ensure_ascii=False)
    plain = write(tmp_path, "a.jsonl", f"{line}\n{line}\n")
    odd = write(tmp_path, "b.jsonl", f"\ufeff{line}\r\n\r\n   \r\n{line}")
    assert [row.turns for row in read_rows(plain).rows] == [row.turns for row in read_rows(odd).rows]
    assert [row.place for row in read_rows(odd).rows] == [f"{odd}:1", f"{odd}:4"]


def test_json_array_rows_know_their_lines(tmp_path):
    text = (
        "\ufeff[\r\n"
        + ",\r\n".join(json.dumps(row) for row in [GOOD, {"instruction": "x"}, GOOD])
        + "\r\n]\r\n"
    )
    file = write(tmp_path, "a.json", text)
    found = read_rows(file, on_bad_row="skip")
    assert [row.place for row in found.rows] == [f"{file}:2", f"{file}:4"]
    assert found.bad == (f"{file}:3: output: expected text, found nothing",)


def test_json_file_with_one_object_a_line_is_read_as_jsonl(tmp_path):
    assert len(read_rows(write(tmp_path, "a.json", json.dumps(GOOD) + "\n" + json.dumps(GOOD))).rows) == 2


def test_unusual_line_ends_inside_a_text_do_not_cut_a_row(tmp_path):
    row = {**GOOD, "output": "a\u2028b\u0085c\x1ed"}
    file = write(tmp_path, "a.jsonl", json.dumps(row, ensure_ascii=False))
    assert read_rows(file).rows[0].turns[-1].text == row["output"]


def test_csv_with_newlines_in_quotes(tmp_path):
    file = write(tmp_path, "a.csv", '\ufeffinstruction,input,output\r\na,,"b\nc"\r\nd,e,f\r\ng,h\r\n')
    found = read_rows(file, on_bad_row="skip")
    assert [row.turns[-1].text for row in found.rows] == ["b\nc", "f"]
    assert [row.place for row in found.rows] == [f"{file}:2", f"{file}:4"]
    assert found.bad == (f"{file}:5: more or fewer columns than the first line names",)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist([GOOD, {**GOOD, "output": ""}]), tmp_path / "a.parquet")
    found = read_rows(tmp_path / "a.parquet", on_bad_row="skip")
    assert found.rows[0].turns[-1].text == "hello"
    assert found.bad == (f"{tmp_path / 'a.parquet'}:row 2: output: is empty",)


def test_a_folder_is_read_by_name(tmp_path):
    write(tmp_path, "b.jsonl", json.dumps({**GOOD, "output": "second"}))
    write(tmp_path, "a.json", json.dumps([{**GOOD, "output": "first"}]))
    write(tmp_path, "notes.txt", "not rows")
    assert [row.turns[-1].text for row in read_rows(tmp_path).rows] == ["first", "second"]


def test_all_bad_rows_are_told_at_once_with_their_lines(tmp_path):
    lines = ["null", "{}", '{"instruction": "a", "output": ""}', "{nonsense", json.dumps(GOOD), '"text"']
    file = write(tmp_path, "a.jsonl", "\n".join(lines))
    with pytest.raises(ConfigError) as caught:
        read_rows(file)
    assert caught.value.message.split("\n") == [
        f"{file}:1: expected a row with instruction and output, found null",
        f"{file}:2: expected instruction and output, messages or conversations; found nothing",
        f"{file}:3: output: is empty",
        f"{file}:4: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        f'{file}:6: expected a row with instruction and output, found "text"',
    ]
    assert "data.on_bad_row=skip" in caught.value.hint
    found = read_rows(file, on_bad_row="skip")
    assert (len(found.rows), len(found.bad)) == (1, 5)


def test_many_bad_rows_are_counted_and_the_first_shown(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_rows(write(tmp_path, "a.jsonl", "null\n" * 100))
    assert len(caught.value.message.split("\n")) == 21
    assert caught.value.message.endswith("and 80 more bad rows")


def test_no_usable_row_is_an_error_under_either_policy(tmp_path):
    file = write(tmp_path, "a.jsonl", "null\n\n")
    with pytest.raises(ConfigError, match="0 usable rows of 1"):
        read_rows(file, on_bad_row="skip")
    with pytest.raises(ConfigError, match="0 usable rows of 0"):
        read_rows(write(tmp_path, "b.json", "[]"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[{"instruction": "a", "output": "b"}\n {"instruction": "c"}]',
            "a.json:2: expected ',' or ']' after a row",
        ),
        (
            '[\n{"instruction": "a", "output": "b"},\n{"instruction": oops}]',
            "a.json:3: the row that starts here is not",
        ),
        ('[\n{"instruction": "a", "output": "b"}', "a.json:2: expected ',' or ']'"),
    ],
)
def test_a_broken_array_is_told_with_its_line(tmp_path, text, message):
    with pytest.raises(ConfigError) as caught:
        read_rows(write(tmp_path, "a.json", text))
    assert message in caught.value.message


def test_text_in_gbk_is_named_with_its_cure(tmp_path):
    file = write(tmp_path, "a.jsonl", b'{"instruction": "a", "output": "b"}\n' + "你好".encode("gbk"))
    with pytest.raises(ConfigError) as caught:
        read_rows(file)
    assert caught.value.message == f"{file}:2: not UTF-8 text"
    assert "iconv" in caught.value.hint


@pytest.mark.parametrize("name", ["nothing.json", "rows.txt", "empty"])
def test_paths_that_hold_no_rows(tmp_path, name):
    (tmp_path / "empty").mkdir()
    write(tmp_path, "rows.txt", "{}")
    with pytest.raises(ConfigError, match=r"data\.path"):
        read_rows(tmp_path / name)


def test_alpaca_rows():
    assert read_turns({"instruction": "a", "input": None, "output": "b"}) == (
        Turn("user", "a"),
        Turn("assistant", "b"),
    )
    assert read_turns({
        "system": "s", "instruction": "a", "input": "x", "output": "b", "history": [["q", "r"]], "id": 5,
    }) == (
        Turn("system", "s"), Turn("user", "q"), Turn("assistant", "r"), Turn("user", "a", "x"), Turn("assistant", "b"),
    )  # fmt: skip


def test_chat_rows_by_their_role_names():
    expected = (Turn("user", "q"), Turn("assistant", "a"))
    human = {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}
    user = {"conversations": [{"from": "user", "value": "q"}, {"from": "assistant", "value": "a"}]}
    messages = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    assert read_turns(human) == read_turns(user) == read_turns(messages) == expected
    assert read_turns({**human, "system": "s"})[0] == Turn("system", "s")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([("gpt", "a"), ("human", "q")], "the first turn is not the user's"),
        ([("human", "q"), ("human", "q"), ("gpt", "a")], "do not take turns"),
        ([("human", "q"), ("gpt", "a"), ("human", "q")], "the last turn is not an answer"),
        ([("human", "q"), ("robot", "a")], "from: expected one of"),
        ([("human", "q"), ("gpt", "")], "value: is empty"),
        ([("human", "q"), ("system", "s"), ("gpt", "a")], "system turn stands first"),
        ([], "expected a list of turns"),
    ],
)
def test_chat_rows_that_cannot_be_learnt(turns, message):
    value = {"conversations": [{"from": role, "value": text} for role, text in turns]}
    with pytest.raises(ValueError, match=message):
        read_turns(value)
