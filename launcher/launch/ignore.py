"""Which files of a folder ``--sync`` leaves out: patterns as in .gitignore, later ones win. Pure; runs on the head."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

IGNORE_FILE = ".dcuignore"
#: before the patterns of a .dcuignore, which may take one back with ``!``
DEFAULT_PATTERNS = (
    ".git/", ".hg/", ".svn/", "__pycache__/", "*.py[co]", ".venv/", ".ipynb_checkpoints/", ".pytest_cache/",
    ".mypy_cache/", ".ruff_cache/", "/runs/", ".dcu-launch-*",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern: whether it takes names back (``!``), holds for folders only (``/`` at its end), and whole paths."""

    takes_back: bool
    folders_only: bool
    path: re.Pattern[str]


def read_rules(lines: Iterable[str]) -> list[Rule]:
    """The patterns of some lines; blank lines and comments are passed over."""
    rules = []
    for line in lines:
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        takes_back = text.startswith("!")
        text = text[1:] if takes_back else text
        folders_only = text.endswith("/")
        text = text.rstrip("/")
        if text.lstrip("/"):
            rules.append(Rule(takes_back, folders_only, _compile(text)))
    return rules


def is_ignored(path: str, is_folder: bool, rules: Sequence[Rule]) -> bool:
    """Whether a path, relative and with ``/`` between its parts, is left out; what lies in a folder that is, is not asked."""
    ignored = False
    for rule in rules:
        if (is_folder or not rule.folders_only) and rule.path.fullmatch(path):
            ignored = not rule.takes_back
    return ignored


_WILD = (("/**/", "/(?:.*/)?"), ("**/", "(?:.*/)?"), ("/**", "/.*"), ("*", "[^/]*"), ("?", "[^/]"))


def _compile(pattern: str) -> re.Pattern[str]:
    """A pattern with ``/`` in it counts from the top of the folder, one without matches at any depth."""
    anchored = "/" in pattern
    out = "" if anchored else "(?:.*/)?"
    rest = pattern.lstrip("/")
    while rest:
        for mark, written in _WILD:
            if rest.startswith(mark):
                out, rest = out + written, rest[len(mark) :]
                break
        else:
            group = re.match(r"\[(!?)([^\]/]+)\]", rest)
            if group:
                inside = group[2].replace("\\", r"\\")
                out, rest = out + f"[{'^' if group[1] else ''}{inside}]", rest[group.end() :]
            else:
                escaped = rest[1:] if rest.startswith("\\") and len(rest) > 1 else rest
                out, rest = out + re.escape(escaped[0]), escaped[1:]
    return re.compile(out, re.DOTALL)
