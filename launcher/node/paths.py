"""Files and folders by pattern, and small files' texts, for the probe. Runs in the agent.

``glob`` would do, but it loads regular expressions and more, which takes as long as Python's start.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import List, Optional


def find_paths(pattern: str) -> List[str]:
    """Existing paths that match, sorted; ``*`` stands for any letters inside one name, at most once in a name."""
    found = [""]
    for part in pattern.split("/"):
        before, star, after = part.partition("*")
        if not star:
            found = [(path + "/" + part) if path or not part else part for path in found]
            continue
        found = [
            path + "/" + name
            for path in found
            for name in list_names(path or "/")
            if len(name) >= len(before) + len(after)
            and name.startswith(before)
            and name.endswith(after)
            and (before or not name.startswith("."))
        ]
    return [path for path in found if os.path.lexists(path)]


def list_names(folder: str) -> List[str]:
    """What is in a folder, sorted; nothing when it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def read_text(path: str, limit: int = 65536) -> Optional[str]:
    """A small file's text without blanks around it; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit).strip()
    except OSError:
        return None


def read_field(text: Optional[str], name: str) -> Optional[str]:
    """What stands behind ``name`` and a separator (``=``, ``:``) on the first line that begins with it."""
    for line in (text or "").split("\n"):
        if line.startswith(name):
            value = line[len(name) :].strip()
            if value[:1] in ("=", ":"):
                return value[1:].strip()
    return None


def read_int(text: Optional[str]) -> Optional[int]:
    """A number of decimal digits; None for anything else."""
    return int(text) if text and text.isascii() and text.isdigit() else None
