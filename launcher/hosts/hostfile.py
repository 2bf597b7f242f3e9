"""Hostfile text -> list of Host, the first stage of a launch. Runs on the head; contacts nobody.

A line is ``[user@]host[:port]`` and then ``key=value`` words. What is not understood is refused, all bad
lines in one HostfileError: a host that silently drops out would train as a smaller cluster.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.base.env import MASK, is_secret, printable, why_not_settable
from launcher.base.errors import HostfileError
from launcher.hosts.host import Host, label_of
from launcher.hosts.target import (
    LOCAL_NAMES,
    BadWord,
    Target,
    check_name,
    describe_char,
    fold_names,
    parse_target,
)

KEYS = ("slots", "devices", "python", "setup", "key", "addr", "env.NAME")
MAX_SLOTS = 1024
#: bad lines shown before "and N more": a binary file taken for a hostfile has thousands
MAX_BAD_LINES = 100
#: letters of a line; the longest that is of use holds a search path or two
MAX_LINE = 16_384

_HINT = (
    "a line is [user@]host[:port], then any of slots= devices= python= setup= key= addr= env.NAME=; "
    "`dcu-launch hosts --example` prints a commented hostfile"
)
#: what other launchers' hostfiles call the same thing
_OTHER_WORDS = {
    "user": "user@host",
    "port": "host:port",
    "gpus": "slots=N",
    "cards": "slots=N",
    "cpus": "slots=N",
    "max_slots": "slots=N",
    "identity": "key=FILE",
    "address": "addr=ADDRESS",
    "env": "env.NAME=VALUE",
}


@dataclass(slots=True)
class _Line:
    """One line while it is read: its place, its text, what was found wrong and what its words say."""

    place: str
    number: int
    text: str
    problems: list[tuple[str, str]] = field(default_factory=list)
    said: dict[str, Any] = field(default_factory=dict)
    setup: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def refuse(self, problem: str, expected: str) -> None:
        self.problems.append((problem, expected))


def read_hostfile(path: str | Path) -> list[Host]:
    """Read a hostfile; raises HostfileError when it is missing, unreadable, empty or has bad lines."""
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise HostfileError(f"{path}: no such hostfile", "check the path; nothing was started") from None
    except UnicodeDecodeError as error:
        raise HostfileError(
            f"{path}: not UTF-8 text (byte {error.start})", "save it as plain UTF-8 text"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise HostfileError(f"{path}: cannot be read: {reason}", "name a readable text file") from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, name: str) -> list[Host]:
    """Parse hostfile text; ``name`` stands in messages. Raises one HostfileError with every bad line."""
    hosts: list[Host] = []
    lines: list[_Line] = []
    first_line: dict[tuple[str, int], int] = {}
    for number, raw in enumerate(text.removeprefix("\ufeff").split("\n"), start=1):
        line = _Line(f"{name}:{number}", number, raw.strip(" \t\r"))
        lines.append(line)
        new = _parse_line(line)
        _refuse_twice(line, new, first_line)
        hosts += new
    bad_lines = [line for line in lines if line.problems]
    if bad_lines:
        raise HostfileError(_list_problems(bad_lines), _HINT)
    if not hosts:
        raise HostfileError(f"{name}: no hosts in it", _HINT)
    return hosts


def local_hosts(slots: int | None) -> list[Host]:
    """The host list of a run on this machine alone; ``slots`` None: as many ranks as it has cards."""
    return [Host(name="localhost", slots=slots, source="this machine", is_local=True)]


def _refuse_twice(line: _Line, hosts: Sequence[Host], first_line: dict[tuple[str, int], int]) -> None:
    """Tell hosts that are in the file already, once with both lines; remember the others."""
    again: dict[int, list[Host]] = {}
    for host in hosts:
        name = host.name.lower()
        identity = ("localhost" if name in LOCAL_NAMES else name, host.port or 22)
        if identity in first_line:
            again.setdefault(first_line[identity], []).append(host)
        first_line.setdefault(identity, line.number)
    for number, twice in again.items():
        folded = fold_names(host.name for host in twice)
        shown = f"host {label_of(twice[0])} is" if len(twice) == 1 else f"hosts {folded} are"
        if any(host.name.lower() in LOCAL_NAMES for host in twice):
            shown = f"{label_of(twice[0])} is this machine, which is"
        place = "this line" if number == line.number else f"line {number}"
        line.refuse(f"{shown} already on {place}", "each host once; containers on one host differ by port")


def _parse_line(line: _Line) -> list[Host]:
    """Hosts of one line, none when it is blank or its host cannot be read; problems stay in ``line``."""
    if len(line.text) > MAX_LINE:
        line.refuse(
            f"a line of {len(line.text):,} characters", f"at most {MAX_LINE:,}; long values from --env-file"
        )
        return []
    try:
        words = split_words(line.text)
        if not words:
            return []
        if re.match(r"[a-z]+=", words[0]):
            raise BadWord("the line begins with a key, not with a host", "[user@]host[:port] first")
        target = parse_target(words[0])
    except BadWord as error:
        line.refuse(error.problem, error.expected)
        return []
    for word in words[1:]:
        try:
            _read_word(line, word)
        except BadWord as error:
            line.refuse(error.problem, error.expected)
    _check_together(line, target)
    if "devices" in line.said:
        line.said.setdefault("slots", len(line.said["devices"]))
    shared = Host(
        name="",
        port=target.port,
        user=target.user,
        setup=tuple(line.setup),
        env=MappingProxyType(line.env),
        source=line.place,
        address=line.said.pop("addr", ""),
        **line.said,
    )
    is_plain = target.user is None and target.port is None
    return [
        replace(shared, name=name, is_local=is_plain and name.lower() in LOCAL_NAMES) for name in target.names
    ]


def split_words(text: str) -> list[str]:
    """Split at blanks; quotes hold blanks and '#' together, a word that starts with '#' ends the line."""
    words: list[str] = []
    word: str | None = None
    quote = ""
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if quote:
            if char == quote:
                quote = ""
            elif char == "\\" and quote == '"' and text[position : position + 1] in ('"', "\\"):
                word = (word or "") + text[position]
                position += 1
            else:
                word = (word or "") + char
        elif char in "'\"":
            quote, word = char, word or ""
        elif char in " \t":
            if word is not None:
                words.append(word)
            word = None
        elif char == "#" and word is None:
            return words
        else:
            word = (word or "") + char
    if quote:
        raise BadWord(f"a quote {quote} is not closed", "both quotes on one line")
    return words if word is None else [*words, word]


def _read_word(line: _Line, word: str) -> None:
    key, equals, value = word.partition("=")
    odd = next((char for char in word if not char.isprintable() or 0xFF01 <= ord(char) <= 0xFF5E), None)
    if odd is not None and not key.startswith("env."):
        raise BadWord(f"{describe_char(odd)} cannot stand in a hostfile word", "plain ASCII words")
    if key.startswith("env."):
        _read_variable(line, key.removeprefix("env."), equals, value)
        return
    if not equals:
        expected = f"slots={word}" if re.fullmatch("[0-9]+", word) else "key=value words after the host"
        raise BadWord(f"{word!r} is not key=value", expected)
    if key not in _READERS:
        raise BadWord(f"unknown key {key!r}{_suggest_key(key)}", " ".join(f"{known}=" for known in KEYS))
    if not value:
        raise BadWord(f"{key}= has no value", _EXPECTED[key])
    if key == "setup":
        line.setup.append(_read_setup(value))
        return
    if key in line.said:
        raise BadWord(f"{key}= stands twice on the line", f"{key}= once")
    line.said[key] = None  # a second one is a duplicate even when this one is wrong
    line.said[key] = _READERS[key](value)


def _read_variable(line: _Line, name: str, equals: str, value: str) -> None:
    operation = name[-1:] if name[-1:] in ("+", "-") else ""
    name = name.removesuffix(operation)
    expected = "env.NAME=VALUE, env.NAME+=VALUE (prepend) or env.NAME- (unset)"
    reason = why_not_settable(name)
    if reason:
        raise BadWord(f"variable {name!r}: {reason}", expected)
    is_whole = {"": bool(equals), "+": bool(value), "-": not value}[operation]
    if "\0" in value or not is_whole:
        raise BadWord(f"env.{name}{operation} is not complete", expected)
    if any(known.rstrip("+-") == name for known in line.env):
        raise BadWord(f"env.{name} stands twice on the line", f"env.{name} once")
    line.env[name + operation] = value


def _read_slots(value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", value) or not 1 <= int(value) <= MAX_SLOTS:
        raise BadWord(f"slots={value} is not a whole number from 1 to {MAX_SLOTS}", _EXPECTED["slots"])
    return int(value)


def _read_devices(value: str) -> tuple[str, ...]:
    items = value.split(",")
    if not all(re.fullmatch(r"[0-9]{1,4}", item) for item in items):
        raise BadWord(f"devices={value} is not a list of card numbers", _EXPECTED["devices"])
    devices = tuple(str(int(item)) for item in items)
    if len(set(devices)) < len(devices):
        raise BadWord(f"devices={value} names a card twice", _EXPECTED["devices"])
    return devices


def _read_setup(value: str) -> str:
    if re.fullmatch(r"(module|conda|venv):\s*", value):
        raise BadWord(f"setup={value} names nothing", _EXPECTED["setup"])
    return value


def _read_addr(value: str) -> str:
    inside = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    try:
        return check_name(inside)
    except BadWord as error:
        raise BadWord(f"addr={value}: {error.problem}", _EXPECTED["addr"]) from None


_READERS: dict[str, Callable[[str], Any]] = {
    "slots": _read_slots,
    "devices": _read_devices,
    "python": str,
    "setup": _read_setup,
    "key": str,
    "addr": _read_addr,
}
_EXPECTED = {
    "slots": "slots=N, the number of ranks, as in slots=8",
    "devices": "distinct card numbers, as in devices=0,1,2,3",
    "python": "python=FILE, as in python=/opt/py310/bin/python",
    "setup": "setup=FILE, setup=module:NAME, setup=conda:NAME or setup=venv:DIR",
    "key": "key=FILE, a private key, as in key=~/.ssh/id_ed25519",
    "addr": "addr=ADDRESS without a port, as in addr=10.0.0.17",
}


def _suggest_key(key: str) -> str:
    other = _OTHER_WORDS.get(key.lower())
    if other is None:
        close = difflib.get_close_matches(key.lower(), _READERS, n=1)
        other = f"{close[0]}=" if close else ""
    return f", did you mean {other}?" if other else ""


def _check_together(line: _Line, target: Target) -> None:
    """What is right word by word and wrong together; what was refused already is not looked at again."""
    devices, slots = line.said.get("devices"), line.said.get("slots")
    if devices and slots and len(devices) != slots:
        line.refuse(
            f"devices= names {len(devices)} card(s), slots= says {slots}",
            f"slots={len(devices)}, or no slots= beside devices=",
        )
    if line.said.get("addr") and len(target.names) > 1:
        line.refuse(
            f"addr= on a line that means {len(target.names)} hosts", "a line for each host with its own addr="
        )
    visible = [name for name in line.env if name.rstrip("+-").endswith("_VISIBLE_DEVICES")]
    if devices and visible:
        line.refuse(f"devices= and env.{visible[0]} both choose the cards", "one of them")
    for key in [key for key, value in line.said.items() if value is None]:
        del line.said[key]


def _list_problems(lines: Sequence[_Line]) -> str:
    shown: list[str] = []
    for line in lines[:MAX_BAD_LINES]:
        shown += [f"{line.place}: {problem}; expected: {expected}" for problem, expected in line.problems]
        shown.append(f"    {_show_text(line.text)}")
    left = len(lines) - MAX_BAD_LINES
    return "\n".join([*shown, f"and {left} more bad lines"] if left > 0 else shown)


def _show_text(text: str) -> str:
    """The line for a message: secrets masked, control characters visible, 160 characters at most."""

    # a little more than is shown: the search for secrets takes longer the longer a word is
    return printable(_mask_secrets(text[:1000]).replace("\t", " "), limit=160)


def _mask_secrets(text: str) -> str:
    shown, start = "", 0
    for found in re.finditer(r"""["']?([^\s=+"']+)\+?=(\S+)""", text):
        name = found[1].removeprefix("env.")
        if name == "key" or not is_secret(name):  # key= is a word of ours: the path of a key
            continue
        shown += text[start : found.start(2)] + MASK
        if "'" in found[0] or '"' in found[0]:  # the value may hold blanks: hide all that follows
            return shown
        start = found.end()
    return shown + text[start:]
