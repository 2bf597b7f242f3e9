"""The first word of a hostfile line, ``[user@]host[:port]``: read, checked and, if it is a range, expanded.

Takes a word, gives a ``Target`` or raises ``BadWord``; no look-ups, no files. Runs on the head.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

#: most hosts of one line: a slip of the keyboard such as node[1-99999999] must not eat the memory
MAX_HOSTS_A_LINE = 4096
#: names that mean this machine when neither user nor port is given
LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

# A name never starts with "-": the openssh transport would read it as an option.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@\\$-]{0,127}")
_SCOPE = re.compile(r"[A-Za-z0-9_.-]{1,32}")
_RANGE_ITEM = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?:/([0-9]{1,4}))?)?")


class BadWord(ValueError):
    """A word of a hostfile line that cannot be used.

    Args:
        problem: what is wrong with it.
        expected: what would have been right.
    """

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected


@dataclass(frozen=True, slots=True)
class Target:
    """Whom a line means: one name, or all names of a range, with the user and port common to them."""

    names: tuple[str, ...]
    user: str | None
    port: int | None


def parse_target(word: str) -> Target:
    """Read ``[user@]host[:port]``; raises BadWord."""
    user: str | None = None
    rest = word
    if "@" in word:
        user, _, rest = word.rpartition("@")
        if not _USER.fullmatch(user):
            raise BadWord(f"{user!r} is not a user name", "user@host")
    name, port = _split_port(rest)
    if not name:
        raise BadWord(f"{word!r} has no host name", "[user@]host[:port]")
    return Target(tuple(check_name(each) for each in expand_names(name)), user, port)


def check_name(name: str) -> str:
    """Return a host name or address in its usual form (IPv6 compressed); raises BadWord."""
    if ":" in name:
        return _check_ipv6(name)
    if "," in name:
        raise BadWord(f"{name!r} is more than one host", "one host a line, or a range such as node[01-04]")
    if not _NAME.fullmatch(name):
        odd = (
            name[0] if name[0] in "-." else next((c for c in name if not re.match(r"[A-Za-z0-9_.-]", c)), "")
        )
        reason = f"{describe_char(odd)} cannot stand there" if odd else "longer than 253 characters"
        raise BadWord(
            f"{name[:80]!r} is not a host name: {reason}",
            "letters, digits, '.', '-' and '_', the first one not '.' or '-'",
        )
    if not re.search(r"[^0-9.]", name):
        try:
            ipaddress.IPv4Address(name)
        except ValueError:
            problem = f"{name!r} is neither a host name nor an IPv4 address"
            raise BadWord(problem, "four numbers, as in 10.0.0.17") from None
    return name


def expand_names(pattern: str) -> list[str]:
    """Expand ``node[03-05,9]`` in the order in which it is written; a plain name stays. Raises BadWord."""
    if "[" not in pattern and "]" not in pattern:
        return [pattern]
    expected = "a range such as node[03-16] or node[1,4-7]"
    parts = re.split(r"\[([^\[\]]*)\]", pattern)
    if any("[" in part or "]" in part for part in parts):
        raise BadWord(f"{pattern!r} has a bracket without its partner", expected)
    fields: list[list[str]] = []
    num_names = 1
    for index, part in enumerate(parts):
        fields.append([part] if index % 2 == 0 else _expand_numbers(part, expected))
        num_names *= len(fields[-1])
        if num_names > MAX_HOSTS_A_LINE:
            raise BadWord(f"{pattern!r} means more than {MAX_HOSTS_A_LINE} hosts", "a smaller range")
    return ["".join(combination) for combination in itertools.product(*fields)]


def fold_names(names: Iterable[str]) -> str:
    """Write names as short as it goes, ``node[01-03],login``; the inverse of expanding, apart from order."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    listed = sorted(set(names))
    plain = [name for name in listed if ":" not in name]
    rest = [name for name in listed if ":" in name]
    folded = str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)) if plain else ""
    return ",".join([folded, *rest] if folded else rest)


def describe_char(char: str) -> str:
    """Name a character for a message; full-width ones, which look right on the screen, are called so."""
    code = ord(char)
    if code == 0x3000 or 0xFF01 <= code <= 0xFF5E:
        return f"the full-width character U+{code:04X}"
    if char.isprintable() and char != " ":
        return repr(char)
    return f"the character U+{code:04X}"


def _split_port(word: str) -> tuple[str, int | None]:
    if word.startswith("[") and ":" in word.partition("]")[0]:
        inside, bracket, tail = word[1:].partition("]")
        if not bracket or (tail and not tail.startswith(":")):
            raise BadWord(
                f"{word!r} is not an address in brackets", "[address] or [address]:port, as in [fd00::17]:22"
            )
        return inside, _check_port(tail[1:]) if tail else None
    if word.count(":") != 1:
        return word, None
    name, _, port = word.partition(":")
    return name, _check_port(port)


def _check_port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise BadWord(f"port {text!r} is not a number from 1 to 65535", "host:port, as in node01:2222")
    return int(text)


def _check_ipv6(name: str) -> str:
    address, percent, scope = name.partition("%")
    try:
        canonical = str(ipaddress.IPv6Address(address))
    except ValueError:
        raise BadWord(
            f"{name!r} is neither host:port nor an IPv6 address", "node01:2222, fd00::17 or [fd00::17]:2222"
        ) from None
    if percent and not _SCOPE.fullmatch(scope):
        raise BadWord(f"{scope!r} is not an interface name", "an address such as fe80::1%eth0")
    return canonical + percent + scope


def _expand_numbers(text: str, expected: str) -> list[str]:
    from ClusterShell.RangeSet import RangeSet, RangeSetException

    numbers: list[str] = []
    for item in text.split(","):
        matched = _RANGE_ITEM.fullmatch(item)
        if not matched:
            raise BadWord(f"{item!r} is not a number or a range of numbers", expected)
        first, last = int(matched[1]), int(matched[2] or matched[1])
        if last - first >= MAX_HOSTS_A_LINE:
            raise BadWord(f"[{text}] means more than {MAX_HOSTS_A_LINE} hosts", "a smaller range")
        try:
            numbers += [str(number) for number in RangeSet(item)]
        except RangeSetException:
            raise BadWord(
                f"{item!r} is not a range", "a range from low to high, padded alike: 03-16"
            ) from None
    return numbers
