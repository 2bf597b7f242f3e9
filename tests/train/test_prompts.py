"""Questions from files and words, and what is said of lines that are none."""

from __future__ import annotations

import json

import pytest

from launcher.base.errors import UsageError
from launcher.train.prompts import make_prompt, read_prompts, say_prompts
from launcher.train.rows import Turn


def test_a_text_file_has_a_question_a_line(tmp_path):
    file = tmp_path / "q.txt"
    file.write_bytes("\ufeffWhat is a DCU?\r\n\r\n海光 DCU 是什么?\u2028还有呢".encode())
    assert [prompt.text for prompt in read_prompts(str(file))] == [
        "What is a DCU?",
        "海光 DCU 是什么?\u2028还有呢",
    ]


def test_objects_of_every_kind_of_row_are_questions(tmp_path):
    rows = [
        {"prompt": "a"},
        {"instruction": "b", "input": "c", "output": "not asked"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "d"}]},
        {
            "conversations": [
                {"from": "human", "value": "e"},
                {"from": "gpt", "value": "f"},
                {"from": "human", "value": "g"},
                {"from": "gpt", "value": "not asked"},
            ]
        },
    ]
    file = tmp_path / "q.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    prompts = read_prompts(str(file), "mine")
    assert [prompt.turns for prompt in prompts] == [
        (Turn("system", "mine"), Turn("user", "a")),
        (Turn("system", "mine"), Turn("user", "b", "c")),
        (Turn("system", "s"), Turn("user", "d")),
        (Turn("system", "mine"), Turn("user", "e"), Turn("assistant", "f"), Turn("user", "g")),
    ]
    assert [prompt.text for prompt in prompts] == ["a", "b", "d", "g"]


def test_all_lines_that_are_no_question_are_told_at_once(tmp_path):
    file = tmp_path / "q.jsonl"
    lines = ['{"prompt": "good"}', "[1]", '{"prompt": ""}', "{", '{"messages": [{"role": "user"}]}']
    file.write_text("\n".join([*lines, '{"messages": [{"role": "assistant", "content": "x"}]}']))
    with pytest.raises(UsageError) as caught:
        read_prompts(str(file))
    told = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in told] == ["2", "3", "4", "5", "6"]
    assert told[0] == f"{file}:2: expected an object"
    assert told[4] == f"{file}:6: no question of the user stands at its end"


@pytest.mark.parametrize(("data", "message"), [(b"\n\n", "holds no question"), (b"a\n\xff", ":2: not UTF-8")])
def test_files_that_cannot_be_used(tmp_path, data, message):
    file = tmp_path / "q.txt"
    file.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_prompts(str(file))


def test_words():
    assert say_prompts(["a"], "s") == [make_prompt("a", "s")]
    with pytest.raises(UsageError, match="empty question"):
        say_prompts(["a", " "], "")
    with pytest.raises(UsageError, match="/nowhere: cannot be read: No such file"):
        read_prompts("/nowhere")
