"""OpenSSH's client configuration for one host: the files' lines in, the settings that hold for the host out.

Reads ~/.ssh/config and /etc/ssh/ssh_config as ``ssh`` does (ssh_config(5)): first value wins, Include anywhere and nested in
Host blocks, Match, quotes and comments. ``ssh -G`` is the oracle of its tests. Runs on the head; needs no SSH library.
"""

from __future__ import annotations

import getpass
import glob
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from launcher.base.errors import UnreachableError

USER_FILE = ("~/.ssh/config", "~/.ssh")
SYSTEM_FILE = ("/etc/ssh/ssh_config", "/etc/ssh")
MAX_INCLUDE_DEPTH = 16
#: every value counts, not only the first
REPEATED = frozenset({"identityfile", "certificatefile"})
#: the rest of the line is one value, quotes and all
WHOLE_LINE = frozenset({"proxycommand", "remotecommand", "localcommand", "knownhostscommand"})

_KEYWORD = re.compile(r"([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*)$")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: keyword in lower case and its words; for Include the lines of each file that it names."""

    keyword: str
    words: tuple[str, ...]
    where: str
    included: tuple[tuple[Line, ...], ...] = ()


@dataclass(slots=True)
class Settings:
    """What holds for one host, by keyword in lower case.

    Attributes:
        name: the host as the user named it (``Host`` and ``Match originalhost`` look at it).
        user: the user named on the hostfile's line, if any.
    """

    name: str
    user: str | None = None
    port: int | None = None
    values: dict[str, list[str]] = field(default_factory=dict)

    def get(self, keyword: str) -> str | None:
        """The value of a keyword; None when it is not set."""
        words = self.values.get(keyword)
        return words[0] if words else None

    def all(self, keyword: str) -> list[str]:
        """All values of a keyword."""
        return self.values.get(keyword, [])

    def is_yes(self, keyword: str) -> bool:
        """True when a flag is set."""
        return (self.get(keyword) or "").lower() in ("yes", "true")

    def hostname(self) -> str:
        """HostName with its tokens replaced, else the name itself."""
        return (self.get("hostname") or "%h").replace("%h", self.name).replace("%%", "%")

    def add(self, keyword: str, words: Sequence[str]) -> None:
        """Take a line that holds: the first one of a keyword wins, ProxyJump and ProxyCommand exclude each other."""
        if keyword in REPEATED:
            self.values.setdefault(keyword, []).extend(words[:1])
        elif keyword not in self.values:
            rival = {"proxyjump": "proxycommand", "proxycommand": "proxyjump"}.get(keyword)
            if rival not in self.values:
                self.values[keyword] = list(words)


class SshConfig:
    """The lines of all files, read once; asked for each host."""

    def __init__(self, files: Sequence[tuple[str, str]] = (USER_FILE, SYSTEM_FILE)) -> None:
        """Args: pairs of a file and the folder that relative Includes in it start from."""
        self._files = [
            _read(Path(path).expanduser(), os.path.expanduser(base), 0)
            for path, base in files
        ]  # fmt: skip

    def settings(self, name: str, user: str | None = None, port: int | None = None) -> Settings:
        """What holds for a host.

        Args:
            user: as given outside of ssh_config; it wins, and Match sees it. ``port`` likewise.

        Raises:
            UnreachableError: a Match asks for something that only ``ssh`` itself knows.
        """
        found = Settings(name, user, port)
        self._apply(found, final=False, canonical=False)
        canonical = _canonicalize(found)
        if canonical or any(_asks_final(lines) for lines in self._files):
            self._apply(found, final=True, canonical=canonical)
        return found

    def _apply(self, found: Settings, final: bool, canonical: bool) -> None:
        for lines in self._files:
            _Reader(found, final, canonical).read(lines, True, False)


def _read(path: Path, base: str, depth: int) -> tuple[Line, ...]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ()
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        match = _KEYWORD.match(raw.strip())
        if match is None or raw.lstrip().startswith("#"):
            continue
        keyword, rest = match.group(1).lower(), match.group(2).strip()
        words = (rest,) if keyword in WHOLE_LINE else _split(rest)
        if not words:
            continue
        included: tuple[tuple[Line, ...], ...] = ()
        if keyword == "include" and depth < MAX_INCLUDE_DEPTH:
            included = tuple(_read(Path(name), base, depth + 1) for name in _named(words, base))
        lines.append(Line(keyword, words, f"{path}:{number}", included))
    return tuple(lines)


def _split(rest: str) -> tuple[str, ...]:
    """Words, quotes taken off, up to a comment."""
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return tuple(lexer)
    except ValueError:  # a quote that is never closed: ssh would refuse the file
        return tuple(rest.split())


def _named(words: Sequence[str], base: str) -> Iterator[str]:
    for word in words:
        yield from sorted(glob.glob(os.path.join(base, os.path.expanduser(word))))


def _asks_final(lines: Sequence[Line]) -> bool:
    return any(
        (line.keyword == "match" and {"final", "!final"} & {word.lower() for word in line.words})
        or any(_asks_final(part) for part in line.included)
        for line in lines
    )


class _Reader:
    """One pass over the files for one host."""

    def __init__(self, found: Settings, final: bool, canonical: bool) -> None:
        self._found = found
        self._final, self._canonical = final, canonical

    def read(self, lines: Sequence[Line], active: bool, never: bool) -> None:
        """Take the lines that hold; ``never``: the Include stands in a block that does not, so no block in it can."""
        for line in lines:
            if line.keyword == "host":
                active = not never and _matches_any(line.words, self._subject())
            elif line.keyword == "match":
                active = not never and self._does_match(line)
            elif line.keyword == "include":
                for part in line.included:
                    self.read(part, active, not active)
            elif active:
                self._found.add(line.keyword, line.words)

    def _subject(self) -> str:
        """What Host looks at: the name as given, in the second pass what HostName made of it."""
        return self._found.hostname() if self._final else self._found.name

    def _does_match(self, line: Line) -> bool:
        words = list(line.words)
        result = True
        while words:
            word = words.pop(0)
            wanted, criterion = not word.startswith("!"), word.removeprefix("!").lower()
            if criterion in ("all", "canonical", "final"):
                held = {"all": True, "canonical": self._canonical, "final": self._final}[criterion]
            elif not words:
                raise UnreachableError(f"{line.where}: Match {criterion} lacks its value")
            else:
                value = words.pop(0)
                # as ssh does: no command is run for a line that fails already
                held = result and self._holds(line, criterion, value)
            result = result and held == wanted
        return result

    def _holds(self, line: Line, criterion: str, value: str) -> bool:
        found = self._found
        subjects: dict[str, Callable[[], str]] = {
            "host": lambda: found.hostname().lower(),
            "originalhost": lambda: found.name.lower(),
            "user": lambda: found.user or found.get("user") or local_user(),
            "localuser": local_user,
            "tagged": lambda: found.get("tag") or "",
            "sessiontype": lambda: "exec",
        }
        if criterion == "exec":
            command = expand(value, found)
            shell = os.environ.get("SHELL", "/bin/sh")
            return (
                subprocess.run([shell, "-c", command], stdin=subprocess.DEVNULL, check=False).returncode == 0
            )
        if criterion not in subjects:
            raise UnreachableError(
                f"{line.where}: Match {criterion} is known to ssh alone",
                "reach the hosts with --transport openssh",
            )
        if criterion in ("host", "originalhost"):
            value = value.lower()
        return _matches_any(value.split(","), subjects[criterion]())


def _matches_any(patterns: Sequence[str], text: str) -> bool:
    """A list of patterns: one that matches is enough, a negated one that matches forbids."""
    held = False
    for pattern in patterns:
        if pattern.startswith("!"):
            if pattern_matches(pattern[1:], text):
                return False
        elif not held:
            held = pattern_matches(pattern, text)
    return held


def pattern_matches(pattern: str, text: str) -> bool:
    """``*`` and ``?`` as in ssh_config(5), PATTERNS; nothing else is special."""
    if "*" not in pattern and "?" not in pattern:
        return pattern == text
    return _compiled(pattern).fullmatch(text) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    parts = {"*": ".*", "?": "."}
    return re.compile("".join(parts.get(letter, re.escape(letter)) for letter in pattern), re.DOTALL)


def _canonicalize(found: Settings) -> bool:
    """CanonicalizeHostname: complete a short name by the first domain in which it is known; True when it took part."""
    if (found.get("canonicalizehostname") or "no").lower() not in ("yes", "always"):
        return False
    import socket

    name = found.hostname()
    if name.count(".") <= int(found.get("canonicalizemaxdots") or 1) and not name.endswith("."):
        for domain in found.all("canonicaldomains"):
            try:
                socket.getaddrinfo(f"{name}.{domain}", None, type=socket.SOCK_STREAM)
            except socket.gaierror:
                continue
            found.values["hostname"] = [f"{name}.{domain}".replace("%", "%%")]
            break
    return True


def local_user() -> str:
    """The user who runs this."""
    return getpass.getuser()


def expand(text: str, found: Settings, port: int | None = None) -> str:
    """Replace ssh_config's tokens (TOKENS in ssh_config(5)); unknown ones stay."""
    tokens: dict[str, Callable[[], str]] = {
        "%": lambda: "%",
        "d": lambda: os.path.expanduser("~"),
        "h": found.hostname,
        "i": lambda: str(os.getuid()),
        "k": lambda: found.get("hostkeyalias") or found.name,
        "L": lambda: os.uname().nodename.split(".")[0],
        "l": lambda: os.uname().nodename,
        "n": lambda: found.name,
        "p": lambda: str(port or found.port or found.get("port") or 22),
        "r": lambda: found.user or found.get("user") or local_user(),
        "u": local_user,
    }  # fmt: skip

    def replace(match: re.Match[str]) -> str:
        return tokens[match[1]]() if match[1] in tokens else match[0]

    return re.sub(r"%([%a-zA-Z])", replace, text)


def expand_path(text: str, found: Settings) -> str:
    """A file name of ssh_config: ``~``, ``${VARIABLE}`` and tokens."""
    text = re.sub(r"\$\{(\w+)\}", lambda match: os.environ.get(match[1], match[0]), text)
    return expand(os.path.expanduser(text), found)
