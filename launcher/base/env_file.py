"""Variables as a user writes them, ``--env`` words and env files -> EnvOp. Runs on the head.

Mistakes go into a list that the caller gives, never one by one and never with the value: it may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from launcher.base.variable import why_not_settable

Operation = Literal["set", "prepend", "unset"]


@dataclass(frozen=True, slots=True)
class EnvOp:
    """One change of one variable on a node.

    Attributes:
        value: what is set or prepended; empty for unset.
        source: who asked for it, for messages: ``--env``, ``job.env:3``, ``hostfile:2``.
        separator: between the prepended value and what was there.
        fallback: variable whose value counts as "what was there" when ``name`` itself is unset or empty.
        if_any: done only where one of these variables is set; empty: always.
    """

    name: str
    operation: Operation
    value: str
    source: str
    separator: str = ":"
    fallback: str = ""
    if_any: tuple[str, ...] = ()


def parse_options(words: Sequence[str], environ: Mapping[str, str], problems: list[str]) -> list[EnvOp]:
    """Read ``--env`` words: NAME (the head's value), NAME=VALUE, NAME+=VALUE (prepend), NAME- (unset)."""
    ops: list[EnvOp] = []
    for word in words:
        key, equals, value = word.partition("=")
        if equals:
            op = make_op(key, value, "--env", problems)
        elif key.endswith("-"):
            op = make_op(key, None, "--env", problems)
        elif key in environ:
            op = make_op(key, environ[key], "--env, value of this machine", problems)
        else:
            reason = why_not_settable(key.rstrip("+")) or "not set on this machine; write NAME=VALUE"
            problems.append(f"--env {key}: {reason}")
            continue
        ops += [op] if op else []
    return ops


def make_op(key: str, value: str | None, source: str, problems: list[str]) -> EnvOp | None:
    """One change from its key, ``NAME``, ``NAME+`` or ``NAME-``, and value (None: unset); None if refused."""
    suffix = key[-1:] if key[-1:] in ("+", "-") else ""
    name = key.removesuffix(suffix)
    reason = why_not_settable(name)
    if not reason and suffix == "-" and value:
        reason = "NAME- unsets it and takes no value"
    if not reason and suffix == "+" and not value:
        reason = "nothing to prepend"
    if not reason and value is not None and "\0" in value:
        reason = "a value cannot hold a zero byte"
    if reason:
        shown = name if len(name) <= 80 else name[:77] + "..."
        problems.append(f"{source}: {shown!r}: {reason}")
        return None
    if suffix == "-" or value is None:
        return EnvOp(name, "unset", "", source)
    return EnvOp(name, "prepend" if suffix == "+" else "set", value, source)


def read_env_file(path: str | Path, problems: list[str]) -> list[EnvOp]:
    """Read ``[export] KEY=VALUE`` lines of a file (KEY+=VALUE prepends), past blank lines and comments."""
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.append(f"{path}: not UTF-8 text (byte {error.start})")
        return []
    except (OSError, ValueError) as error:
        problems.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
        return []
    ops: list[EnvOp] = []
    for number, raw in enumerate(text.split("\n"), start=1):
        place, line = f"{path}:{number}", raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        line = re.sub(r"^export[ \t]+", "", line)
        key, equals, quoted = line.partition("=")
        if not equals:
            problems.append(f"{place}: expected KEY=VALUE")
            continue
        if key != key.strip(" \t") or quoted[:1] in (" ", "\t"):
            problems.append(f"{place}: {key.strip()!r}: no blanks around '='")
            continue
        try:
            value = _unquote(quoted)
        except ValueError as error:
            problems.append(f"{place}: {key!r}: {error}")
            continue
        op = make_op(key, value, place, problems)
        ops += [op] if op else []
    return ops


#: in $'...': what bash makes of a letter after a backslash; others stay as they are written
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", "'": "'", '"': '"'}


def _unquote(text: str) -> str:
    """The value of a line, read as bash would, but expansion is refused; raises ValueError."""
    if text.startswith("$'"):
        matched = re.match(r"\$'((?:[^'\\]|\\.)*)'", text)
        if not matched:
            raise ValueError("the quote $' is not closed on this line")
        value = re.sub(r"\\(.)", lambda escape: _ESCAPED.get(escape[1], escape[0]), matched[1])
        return _check_tail(value, text[matched.end() :])
    if text.startswith("'"):
        value, quote, rest = text[1:].partition("'")
        if not quote:
            raise ValueError("the quote ' is not closed on this line")
        return _check_tail(value, rest)
    if text.startswith('"'):
        matched = re.match(r'"((?:[^"\\]|\\.)*)"', text)
        if not matched:
            raise ValueError('the quote " is not closed on this line')
        _refuse_expansion(re.sub(r"\\.", "", matched[1]))
        return _check_tail(re.sub(r'\\(["\\$`])', r"\1", matched[1]), text[matched.end() :])
    value = "" if text.startswith("#") else re.split(r"[ \t]#", text, maxsplit=1)[0].rstrip(" \t")
    if re.search(r"[ \t'\"]", value):
        raise ValueError("a value with blanks or quotes inside stands in quotes as a whole")
    _refuse_expansion(value)
    return value


def _check_tail(value: str, rest: str) -> str:
    if rest and not re.fullmatch(r"[ \t]+(#.*)?", rest):
        raise ValueError("text after the closing quote")
    return value


def _refuse_expansion(text: str) -> None:
    # LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH taken word for word breaks every node, expanded on the head as well.
    if re.search(r"\$[A-Za-z_{(]|`", text):
        raise ValueError("'$' is not expanded here: NAME+=VALUE prepends, single quotes keep it as it is")
