"""Turns -> token ids and which of them are learnt. Runs in every rank; needs a tokenizer, not torch.

Question and answer are turned into tokens apart from each other, as they are when the model answers later. The
answer ends with an end mark, which is learnt; what a chat template writes after it is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from launcher.base.errors import ConfigError
from launcher.train.rows import Row, Turn

_PLAIN = {
    "zh": ("### 指令:\n{}\n\n", "### 输入:\n{}\n\n", "### 回答:\n"),
    "en": ("### Instruction:\n{}\n\n", "### Input:\n{}\n\n", "### Answer:\n"),
}


class Segment(NamedTuple):
    """A piece of a row's text; answers are learnt."""

    text: str
    is_answer: bool


class Encoded(NamedTuple):
    """A row as tokens; ``learn[i]`` says whether token i is to be predicted."""

    ids: list[int]
    learn: list[bool]


@dataclass(frozen=True, slots=True)
class Template:
    """How turns become text: ``chat`` (the tokenizer's own), ``zh`` or ``en``.

    Attributes:
        bos: what the tokenizer puts before a text, for the plain templates; a chat template writes its own.
    """

    name: str
    tokenizer: Any
    bos: tuple[int, ...] = ()


def choose_template(name: str, tokenizer: Any, rows: Sequence[Row]) -> Template:
    """The template asked for; ``auto`` prefers the tokenizer's, then the language of most rows."""
    has_chat = bool(getattr(tokenizer, "chat_template", None))
    if tokenizer.eos_token_id is None:
        raise ConfigError("model.path: the tokenizer names no end mark (eos_token)")
    if name == "chat" and not has_chat:
        raise ConfigError("data.template: the tokenizer has no chat template", "data.template=zh or en")
    if name == "chat" or (name == "auto" and has_chat):
        return Template("chat", tokenizer)
    if name == "auto":
        chinese = sum(any("\u4e00" <= c <= "\u9fff" for turn in row.turns for c in turn.text) for row in rows)
        name = "zh" if 2 * chinese >= len(rows) else "en"
    first = tokenizer("a")["input_ids"][:1]
    has_bos = tokenizer.bos_token_id is not None and first == [tokenizer.bos_token_id]
    return Template(name, tokenizer, tuple(first) if has_bos else ())


def split_row(template: Template, turns: Sequence[Turn]) -> list[Segment]:
    """The text of turns, cut where an answer begins and ends; an answer that is still to come is left open."""
    return _split_chat(template, turns) if template.name == "chat" else _split_plain(template.name, turns)


def _split_plain(name: str, turns: Sequence[Turn]) -> list[Segment]:
    instruction, extra, answer = _PLAIN[name]
    segments, prompt = [], ""
    for turn in turns:
        if turn.role == "system":
            prompt += turn.text + "\n\n"
        elif turn.role == "user":
            prompt += (
                instruction.format(turn.text) + (extra.format(turn.extra) if turn.extra else "") + answer
            )
        else:
            segments += [Segment(prompt, False), Segment(turn.text, True)]
            prompt = "\n\n"
    return [*segments, Segment(prompt, False)] if turns[-1].role != "assistant" else segments


def _split_chat(template: Template, turns: Sequence[Turn]) -> list[Segment]:
    messages = [
        {"role": turn.role, "content": f"{turn.text}\n{turn.extra}" if turn.extra else turn.text}
        for turn in turns
    ]
    segments, done = [], ""
    for index, turn in enumerate(turns):
        is_open = index + 1 == len(turns) and turn.role != "assistant"
        if turn.role != "assistant" and not is_open:
            continue
        upto = index + 1 if is_open else index
        prompt = _render(template, messages[:upto], True)
        segments.append(Segment(_cut(prompt, done), False))
        if not is_open:
            done = _render(template, messages[: index + 1], False)
            segments.append(Segment(_cut(done, prompt), True))
    return segments


def _render(template: Template, messages: list[dict[str, str]], add_prompt: bool) -> str:
    return str(
        template.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_prompt)
    )


def _cut(text: str, start: str) -> str:
    if not text.startswith(start):
        raise ConfigError(
            "data.template: the tokenizer's chat template rewrites earlier turns of a row",
            "data.template=zh or en, or rows of one question and one answer",
        )
    return text[len(start) :]


def encode_rows(template: Template, rows: Iterable[Row], mask_prompt: bool) -> list[Encoded]:
    """The tokens of rows, whole; ``mask_prompt`` learns the answers alone."""
    split = [split_row(template, row.turns) for row in rows]
    texts = [segment.text for segments in split for segment in segments]
    tokens = iter(_tokenize(template, texts))
    marks = special_ids(template.tokenizer)
    return [
        _join(template, segments, [next(tokens) for _ in segments], marks, mask_prompt) for segments in split
    ]


def encode_question(template: Template, turns: Sequence[Turn]) -> list[int]:
    """The tokens of turns up to where the model has to answer."""
    segments = split_row(template, turns)
    tokens = _tokenize(template, [segment.text for segment in segments])
    return _join(template, segments, tokens, special_ids(template.tokenizer), True).ids


def end_ids(template: Template) -> list[int]:
    """The tokens at which an answer of this template is over."""
    turns = (Turn("user", "a"), Turn("assistant", "a"))
    row = encode_rows(template, [Row(turns, "")], True)[0]
    last = max(index for index, learn in enumerate(row.learn) if learn)
    return sorted({row.ids[last], int(template.tokenizer.eos_token_id)})


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Tokens that no plain text can hold: the marks of a chat template among them."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    marks = {int(index) for index, token in added.items() if token.special}
    return frozenset(marks | {int(index) for index in tokenizer.all_special_ids})


def _tokenize(template: Template, texts: list[str]) -> list[list[int]]:
    if not texts:
        return []
    result: list[list[int]] = template.tokenizer(texts, add_special_tokens=False)["input_ids"]
    return result


def _join(
    template: Template,
    segments: Sequence[Segment],
    tokens: Sequence[list[int]],
    marks: frozenset[int],
    mask_prompt: bool,
) -> Encoded:
    ids, learn = list(template.bos), [False] * len(template.bos)
    for segment, piece in zip(segments, tokens, strict=True):
        if not segment.is_answer:
            ids += piece
            learn += [not mask_prompt] * len(piece)
            continue
        # by its place and not by its id: with pad == eos the end mark would be masked with the padding
        end = max((i for i, token in enumerate(piece) if token in marks), default=-1)
        if end < 0:
            piece, end = [*piece, int(template.tokenizer.eos_token_id)], len(piece)
        ids += piece
        learn += [True] * (end + 1) + [False] * (len(piece) - end - 1)
    while learn and not learn[-1] and segments[-1].is_answer:  # nothing is learnt from it
        ids.pop()
        learn.pop()
    return Encoded(ids, learn)
