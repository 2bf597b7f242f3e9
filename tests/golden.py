"""Texts that may change on purpose only: kept beside the tests, accepted by a variable."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

ACCEPT = "ACCEPT_GOLDEN"
#: looked at once: tests clean the environment
ACCEPTED = bool(os.environ.get(ACCEPT))


def check_golden(path: Path, text: str) -> None:
    """Fail with the difference when a text is not the one that is kept; with ACCEPT_GOLDEN=1 keep the new one."""
    if ACCEPTED:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        return
    kept = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    if text == kept:
        return
    lines = difflib.unified_diff(kept.split("\n"), text.split("\n"), "kept", "new", lineterm="", n=2)
    raise AssertionError(
        f"{path.name} is not as it was kept:\n" + "\n".join(lines) + "\n"
        f"if the change is meant: {ACCEPT}=1 pytest {os.environ.get('PYTEST_CURRENT_TEST', '').split(' ')[0]}"
    )
