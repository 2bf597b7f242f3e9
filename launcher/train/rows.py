"""Files of rows -> Row: what the user wrote, checked, with its place. Standard library only (Parquet: pyarrow).

Reads Alpaca (instruction, input, output), ShareGPT (conversations) and messages rows from JSON, JSONL, CSV and
Parquet, or a folder of them. Runs in every rank, with the same result on all that see the same files.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from launcher.base.config import ROW_SUFFIXES
from launcher.base.errors import ConfigError

_ROLES = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant",
}  # fmt: skip
_SHOWN = 20


class Turn(NamedTuple):
    """One utterance; ``extra`` is Alpaca's input beside the instruction."""

    role: str
    text: str
    extra: str = ""


class Row(NamedTuple):
    """One example: turns that end with an answer, and ``file:line`` of where it stands."""

    turns: tuple[Turn, ...]
    place: str


@dataclass(frozen=True, slots=True)
class RowSet:
    """The rows of a path; ``bad`` says what was wrong with each that was left out."""

    rows: tuple[Row, ...]
    bad: tuple[str, ...]


def read_rows(path: str | Path, on_bad_row: str = "error") -> RowSet:
    """Read all rows of a file or folder.

    Raises:
        ConfigError: nothing there, nothing usable there, or (policy ``error``) bad rows, all named at once.
    """
    rows: list[Row] = []
    bad: list[str] = []
    for file in list_files(Path(path)):
        for place, value in _read_values(file):
            if isinstance(value, Exception):
                bad.append(f"{place}: {value}")
                continue
            try:
                rows.append(Row(read_turns(value), place))
            except ValueError as error:
                bad.append(f"{place}: {error}")
    if bad and on_bad_row == "error":
        raise ConfigError(_fold(bad), "mend the rows, or leave them out with data.on_bad_row=skip")
    if not rows:
        raise ConfigError(
            f"{path}: 0 usable rows of {len(bad)}" + ("\n" + _fold(bad) if bad else ""),
            'a row is {"instruction": "...", "input": "", "output": "..."}',
        )
    return RowSet(tuple(rows), tuple(bad))


def _fold(bad: list[str]) -> str:
    more = [f"and {len(bad) - _SHOWN} more bad rows"] if len(bad) > _SHOWN else []
    return "\n".join(bad[:_SHOWN] + more)


def list_files(path: Path) -> list[Path]:
    """The file itself, or the files of rows in a folder by name; raises ConfigError when there are none."""
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix.lower() in ROW_SUFFIXES and p.is_file())
        if not files:
            raise ConfigError(f"data.path: no {', '.join(ROW_SUFFIXES)} file in {path}")
        return files
    if not path.exists():
        raise ConfigError(f"data.path: {path} is not there", "every node must see the rows under this path")
    if path.suffix.lower() not in ROW_SUFFIXES:
        raise ConfigError(f"data.path: {path}: expected a file that ends in {', '.join(ROW_SUFFIXES)}")
    return [path]


def _read_values(file: Path) -> Iterator[tuple[str, Any]]:
    """(file:line, value) of each row; the value is an exception where the text could not be read."""
    suffix = file.suffix.lower()
    if suffix == ".parquet":
        yield from _read_parquet(file)
        return
    text = _read_text(file)
    if suffix == ".csv":
        yield from _read_csv(file, text)
    elif suffix == ".json" and text.lstrip()[:1] == "[":
        yield from _read_array(file, text)
    else:
        yield from _read_lines(file, text)


def _read_text(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{file}:{line}: not UTF-8 text", "a file in GBK: iconv -f GB18030 -t UTF-8 OLD > NEW"
        ) from None


def _read_lines(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    # only "\n" ends a line: U+2028 and its like may stand inside a text
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"{file}:{number}", json.loads(line)
            except ValueError as error:
                yield f"{file}:{number}", ValueError(f"not JSON: {error}")


def _read_array(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    """The items of one JSON array, each with the line that it starts on."""
    decoder = json.JSONDecoder()
    position, line, seen = text.index("[") + 1, 1, 0
    while True:
        position = _skip_blank(text, position)
        line += text.count("\n", seen, position)
        seen = position
        if text[position : position + 1] == "]":
            return
        try:
            value, position = decoder.raw_decode(text, position)
        except ValueError as error:
            # the items after it cannot be told apart any more
            raise ConfigError(f"{file}:{line}: the row that starts here is not JSON: {error}") from None
        yield f"{file}:{line}", value
        position = _skip_blank(text, position)
        if text[position : position + 1] == ",":
            position += 1
        elif text[position : position + 1] != "]":
            line += text.count("\n", seen, position)
            raise ConfigError(f"{file}:{line}: expected ',' or ']' after a row")


def _skip_blank(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


def _read_csv(file: Path, text: str) -> Iterator[tuple[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))
    before = 1
    for value in reader:
        place, before = f"{file}:{before + 1}", reader.line_num
        if None in value or None in value.values():
            yield place, ValueError("more or fewer columns than the first line names")
        else:
            yield place, value


def _read_parquet(file: Path) -> Iterator[tuple[str, Any]]:
    from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]  # comes with datasets

    number = 0
    for batch in parquet.ParquetFile(file).iter_batches():
        for value in batch.to_pylist():
            number += 1
            yield f"{file}:row {number}", value


def read_turns(value: Any) -> tuple[Turn, ...]:
    """The turns of one row as it was written; raises ValueError that says what is wrong with it."""
    if not isinstance(value, dict):
        raise ValueError(f"expected a row with instruction and output, found {_show(value)}")
    if "messages" in value:
        turns = _read_chat(value["messages"], "messages", "role", "content")
    elif "conversations" in value:
        turns = _read_chat(value["conversations"], "conversations", "from", "value")
    elif "instruction" in value or "output" in value:
        return _read_alpaca(value)
    else:
        keys = ", ".join(str(key) for key in value) or "nothing"
        raise ValueError(f"expected instruction and output, messages or conversations; found {keys}")
    system = _text(value, "system", optional=True)
    if system and turns[0].role != "system":
        turns.insert(0, Turn("system", system))
    _check_order(turns)
    return tuple(turns)


def _read_alpaca(value: dict[str, Any]) -> tuple[Turn, ...]:
    turns = []
    if system := _text(value, "system", optional=True):
        turns.append(Turn("system", system))
    for pair in value.get("history") or []:
        if not (isinstance(pair, list) and len(pair) == 2 and all(isinstance(p, str) and p for p in pair)):
            raise ValueError(f"history: expected [question, answer] pairs, found {_show(pair)}")
        turns += [Turn("user", pair[0]), Turn("assistant", pair[1])]
    turns.append(Turn("user", _text(value, "instruction"), _text(value, "input", optional=True)))
    turns.append(Turn("assistant", _text(value, "output")))
    return tuple(turns)


def _read_chat(items: Any, name: str, role_key: str, text_key: str) -> list[Turn]:
    if not isinstance(items, list) or not items:
        raise ValueError(f"{name}: expected a list of turns, found {_show(items)}")
    turns = []
    for item in items:
        if not isinstance(item, dict):
            raise ValueError(f"{name}: expected turns with {role_key} and {text_key}, found {_show(item)}")
        role = _ROLES.get(str(item.get(role_key, item.get("role", item.get("from")))))
        if role is None:
            words = ", ".join(_ROLES)
            raise ValueError(
                f"{name}: {role_key}: expected one of {words}; found {_show(item.get(role_key))}"
            )
        key = text_key if text_key in item else ("content" if "content" in item else "value")
        turns.append(Turn(role, _text(item, key)))
    return turns


def _check_order(turns: list[Turn]) -> None:
    spoken = [turn.role for turn in turns if turn.role != "system"]
    if any(turn.role == "system" for turn in turns[1:]):
        raise ValueError("a system turn stands first or not at all")
    if not spoken or spoken[0] != "user":
        raise ValueError("the first turn is not the user's")
    if any(role != ("user", "assistant")[index % 2] for index, role in enumerate(spoken)):
        raise ValueError("user and assistant do not take turns")
    if spoken[-1] != "assistant":
        raise ValueError("the last turn is not an answer")


def _text(value: dict[str, Any], key: str, optional: bool = False) -> str:
    text = value.get(key)
    if optional and text is None:
        return ""
    if not isinstance(text, str):
        raise ValueError(f"{key}: expected text, found {_show(text) if key in value else 'nothing'}")
    if not optional and not text.strip():
        raise ValueError(f"{key}: is empty")
    return text


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
