"""Which language a page or a verdict is written in: ``--lang``, else the locale. Runs on the head; pure."""

from __future__ import annotations

from collections.abc import Mapping

LANGUAGES = ("en", "zh")


def pick_language(asked: str | None, environ: Mapping[str, str]) -> str:
    """``en`` or ``zh``: what was asked for, or the locale of messages, in the order in which POSIX reads it."""
    if asked in LANGUAGES:
        return str(asked)
    locale = next((environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if environ.get(name)), "")
    return "zh" if locale.lower().startswith("zh") else "en"
