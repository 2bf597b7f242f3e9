"""Fixed questions -> what the model answers at each validation, in samples.jsonl. Runs in every rank; rank 0 writes.

A falling loss says little; these lines show what is learnt. Answers are the likeliest tokens, found with the very forward
pass of training: no cache, one shape for all steps, so that compiled blocks and packed attention meet nothing new.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError
from launcher.train.channel import Channel
from launcher.train.data import Batch
from launcher.train.metrics import keep_rows
from launcher.train.rows import Turn
from launcher.train.stop import StopFlag
from launcher.train.template import Template, encode_question, end_ids
from launcher.train.world import broadcast

SAMPLES_FILE = "samples.jsonl"
_LENGTH_STEP = 64
#: no token
_BROKEN_OFF = -1


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked.

    Attributes:
        texts: as in the recipe.
        ids: the tokens of each, up to where the answer begins.
        ends: tokens at which an answer is over.
        max_new_tokens: at most so many tokens an answer.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...]
    ends: frozenset[int]
    max_new_tokens: int


def encode_samples(recipe: Recipe, template: Template) -> Questions | None:
    """The recipe's questions as tokens, None without any; raises ConfigError for those longer than a row may be."""
    texts = recipe.train.samples
    if not texts:
        return None
    ids = tuple(tuple(encode_question(template, [Turn("user", text)])) for text in texts)
    limit = recipe.data.max_length
    long = [
        f"train.samples: {text[:40]!r} ... has {len(row)} tokens, data.max_length is {limit}"
        for text, row in zip(texts, ids, strict=True)
        if len(row) > limit
    ]
    if long:
        raise ConfigError("\n".join(long), "a shorter question, or a larger data.max_length")
    return Questions(tuple(texts), ids, frozenset(end_ids(template)), recipe.train.sample_tokens)


@dataclass(frozen=True, slots=True)
class Sampler:
    """Asks the questions and writes the answers.

    Attributes:
        file: samples.jsonl; None on ranks that write nothing.
        together: whether all ranks have to compute together, since each holds only pieces of the weights.
    """

    questions: Questions
    tokenizer: Any
    channel: Channel
    device: Any
    file: Path | None
    together: bool

    def take(self, model: Any, step: int, stop: StopFlag) -> None:
        """Ask the model, which is the engine's, and append its answers; ranks with nothing to do return at once.

        A request to end is not kept waiting: that of rank 0 breaks the answers off, and none is written.
        """
        if self.file is None and not self.together:
            return
        model.eval()
        answers = answer_greedily(model, self.questions, self.device, stop, self.together)
        if self.file is None or answers is None:
            return
        lines = []
        for text, tokens in zip(self.questions.texts, answers, strict=True):
            row = {"prompt": text, "answer": self.tokenizer.decode(tokens, skip_special_tokens=True).strip()}
            lines.append(json.dumps({"step": step, **row}, ensure_ascii=False) + "\n")
            self.channel.send("sample", row, step)
        with self.file.open("a", encoding="utf-8") as file:
            file.write("".join(lines))


def make_sampler(
    questions: Questions | None, tokenizer: Any, channel: Channel, device: Any, file: Path | None, together: bool,
    from_step: int,
) -> Sampler | None:  # fmt: skip
    """The sampler of a run; lines after ``from_step`` belong to an attempt that ended after its last checkpoint."""
    if questions is None:
        return None
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        keep_rows(file, from_step if from_step else -1)
    return Sampler(questions, tokenizer, channel, device, file, together)


def answer_greedily(
    model: Any, questions: Questions, device: Any, stop: StopFlag, together: bool
) -> list[list[int]] | None:
    """The tokens of each answer, without the end mark; None when a request to end came in between.

    Args:
        model: an ``Objective``, or an engine around one.
        together: take rank 0's tokens on all ranks, which then compute equally often.
    """
    import torch

    rows = [list(ids) for ids in questions.ids]
    longest = max(len(row) for row in rows) + questions.max_new_tokens
    length = math.ceil(longest / _LENGTH_STEP) * _LENGTH_STEP
    answers: list[list[int]] = [[] for _ in rows]
    open_rows = set(range(len(rows)))
    for _ in range(questions.max_new_tokens):
        with torch.no_grad():
            following = model(_make_batch(rows, length, device), predict=True)
        if stop.is_set:
            following.fill_(_BROKEN_OFF)
        if together:
            broadcast(following)  # with it whether rank 0 goes on
        tokens = following.tolist()
        if tokens[0] == _BROKEN_OFF:
            return None
        for index, token in enumerate(tokens):
            if index not in open_rows:
                continue
            if token in questions.ends:
                open_rows.discard(index)
            else:
                rows[index].append(token)
                answers[index].append(token)
        if not open_rows:
            break
    return answers


def _make_batch(rows: Sequence[Sequence[int]], length: int, device: Any) -> Batch:
    """Rows padded behind their end, where causal attention never looks, and the place of each one's last token."""
    import torch

    ids = [[*row, *[0] * (length - len(row))] for row in rows]
    places = [index * length + len(row) - 1 for index, row in enumerate(rows)]
    positions = torch.arange(length, device=device).expand(len(rows), length)
    last = torch.tensor(places, dtype=torch.long, device=device)
    return Batch(torch.tensor(ids, device=device), positions, None, last, last)
