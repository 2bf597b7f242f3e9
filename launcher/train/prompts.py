"""A file, stdin or words -> questions as turns. Standard library only; runs where the model is asked."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.errors import UsageError
from launcher.train.rows import Turn

_ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant"}
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question: its last words as the user wrote them, and the turns that end with it."""

    text: str
    turns: tuple[Turn, ...]


def make_prompt(text: str, system: str = "", extra: str = "") -> Prompt:
    """A question of one turn, behind a system message if there is one."""
    before = (Turn("system", system),) if system else ()
    return Prompt(text, (*before, Turn("user", text, extra)))


def read_prompts(path: str, system: str = "") -> list[Prompt]:
    """The questions of a file: one a line, or one JSON object a line where its name ends in .jsonl; ``-`` is stdin.

    Raises:
        UsageError: it cannot be read, holds none, or has lines that are none, all of them named.
    """
    is_json, prompts, wrong = path.endswith(".jsonl"), list[Prompt](), list[str]()
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        line = line.rstrip("\r")
        if not line.strip():
            continue
        try:
            prompts.append(_read_object(json.loads(line), system) if is_json else make_prompt(line, system))
        except ValueError as error:
            wrong.append(f"{path}:{number}: {error}")
    if wrong:
        more = [f"and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
        hint = 'a line is {"prompt": "..."}, or a row of training data'
        raise UsageError("\n".join(wrong[:_SHOWN] + more), hint)
    if not prompts:
        raise UsageError(f"{path}: holds no question")
    return prompts


def _read_text(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        hint = "a file in GBK: iconv -f GB18030 -t UTF-8 OLD > NEW"
        raise UsageError(f"{path}:{line}: not UTF-8 text", hint) from None


def _read_object(value: Any, system: str) -> Prompt:
    """A question from an object of one of the kinds that rows have, its answer left aside; raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    talk = value.get("messages") or value.get("conversations")
    if talk:
        return _read_talk(talk, system)
    text = value.get("prompt") or value.get("instruction")
    if not isinstance(text, str) or not text.strip():
        raise ValueError("expected prompt, instruction or messages")
    extra, own = value.get("input") or "", value.get("system") or system
    if not isinstance(extra, str) or not isinstance(own, str):
        raise ValueError("expected text in input and system")
    return make_prompt(text, own, extra)


def _read_talk(talk: Any, system: str) -> Prompt:
    turns = []
    for entry in talk if isinstance(talk, list) else [talk]:
        if not isinstance(entry, dict):
            raise ValueError("expected role and content of each message")
        role, text = entry.get("role") or entry.get("from"), entry.get("content") or entry.get("value")
        if role not in _ROLES or not isinstance(text, str) or not text.strip():
            raise ValueError("expected role (system, user or assistant) and content of each message")
        turns.append(Turn(_ROLES[role], text))
    while turns and turns[-1].role == "assistant":
        turns.pop()
    if not turns or turns[-1].role != "user":
        raise ValueError("no question of the user stands at its end")
    if system and turns[0].role != "system":
        turns.insert(0, Turn("system", system))
    return Prompt(turns[-1].text, tuple(turns))


def say_prompts(texts: Sequence[str], system: str) -> list[Prompt]:
    """Questions given as words; raises UsageError for empty ones."""
    if not all(text.strip() for text in texts):
        raise UsageError("--prompt: an empty question")
    return [make_prompt(text, system) for text in texts]
