"""What is learnt of a row: the answer and its end mark, by place and not by id."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.base.errors import ConfigError
from launcher.train.model import load_tokenizer
from launcher.train.rows import Row, Turn
from launcher.train.template import (
    choose_template,
    encode_question,
    encode_rows,
    end_ids,
    split_row,
)
from tests.train.tiny import END

pytestmark = pytest.mark.train

QUESTION = (Turn("user", "the fox"),)
ROW = Row((*QUESTION, Turn("assistant", "a dog")), "rows:1")


@pytest.fixture(scope="module")
def chat(model_dir) -> Any:
    return load_tokenizer(str(model_dir))


@pytest.fixture(scope="module")
def plain(plain_dir) -> Any:
    return load_tokenizer(str(plain_dir))


def learnt(tokenizer: Any, row: Any) -> str:
    return tokenizer.decode([token for token, learn in zip(row.ids, row.learn, strict=True) if learn])


def test_chat_template_learns_the_answer_up_to_its_end_mark(chat):
    row = encode_rows(choose_template("auto", chat, [ROW]), [ROW], True)[0]
    assert learnt(chat, row) == f"a dog{END}"
    assert chat.decode(row.ids) == f"<|im_start|>user\nthe fox{END}\n<|im_start|>assistant\na dog{END}"


def test_the_last_label_is_the_end_mark_although_pad_is_the_same_token(plain):
    assert plain.pad_token_id == plain.eos_token_id
    row = encode_rows(choose_template("en", plain, [ROW]), [ROW], True)[0]
    assert learnt(plain, row) == "a dog<|endoftext|>"
    assert row.ids[-1] == plain.eos_token_id
    assert row.learn[-1] is True


def test_each_answer_of_several_turns_is_learnt(chat):
    turns = (Turn("system", "s"), *ROW.turns, Turn("user", "lazy"), Turn("assistant", "wolves"))
    row = encode_rows(choose_template("chat", chat, []), [Row(turns, "")], True)[0]
    assert learnt(chat, row) == f"a dog{END}wolves{END}"


def test_everything_is_learnt_without_the_mask(chat):
    row = encode_rows(choose_template("chat", chat, []), [ROW], mask_prompt=False)[0]
    assert all(row.learn)


def test_a_question_is_put_as_it_was_learnt(chat, plain):
    for tokenizer, name in ((chat, "chat"), (plain, "zh"), (plain, "en")):
        template = choose_template(name, tokenizer, [])
        row = encode_rows(template, [ROW], True)[0]
        first = row.learn.index(True)
        assert encode_question(template, QUESTION) == row.ids[:first]


def test_plain_templates(plain):
    row = Row((Turn("system", "be kind"), Turn("user", "a", "b"), Turn("assistant", "c")), "")
    english = choose_template("en", plain, [])
    assert [s.text for s in split_row(english, row.turns)] == [
        "be kind\n\n### Instruction:\na\n\n### Input:\nb\n\n### Answer:\n", "c",
    ]  # fmt: skip
    assert (
        split_row(choose_template("zh", plain, []), QUESTION)[0].text == "### 指令:\nthe fox\n\n### 回答:\n"
    )


def test_auto_takes_the_language_of_most_rows(plain):
    chinese = Row((Turn("user", "你好"), Turn("assistant", "ok")), "")
    assert choose_template("auto", plain, [chinese, chinese, ROW]).name == "zh"
    assert choose_template("auto", plain, [chinese, ROW, ROW]).name == "en"


def test_end_marks(chat, plain):
    assert end_ids(choose_template("chat", chat, [])) == sorted(
        {chat.eos_token_id, chat.convert_tokens_to_ids(END)}
    )
    assert end_ids(choose_template("en", plain, [])) == [plain.eos_token_id]


def test_a_chat_template_that_is_not_there_is_an_error(plain):
    with pytest.raises(ConfigError, match="no chat template"):
        choose_template("chat", plain, [])


def test_a_template_that_rewrites_earlier_turns_is_refused(model_dir):
    tokenizer = load_tokenizer(str(model_dir))
    tokenizer.chat_template = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        encode_rows(choose_template("chat", tokenizer, []), [ROW], True)
