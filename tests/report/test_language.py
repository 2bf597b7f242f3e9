from __future__ import annotations

import pytest

from launcher.report.language import pick_language


@pytest.mark.parametrize(
    ("asked", "environ", "language"),
    [
        ("zh", {"LANG": "en_US.UTF-8"}, "zh"),
        ("en", {"LANG": "zh_CN.UTF-8"}, "en"),
        (None, {"LANG": "zh_CN.UTF-8"}, "zh"),
        (None, {"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        (None, {"LC_ALL": "", "LC_MESSAGES": "zh_TW", "LANG": "de_DE"}, "zh"),
        (None, {}, "en"),
    ],
)
def test_asked_for_or_by_the_locale(asked: str | None, environ: dict[str, str], language: str) -> None:
    assert pick_language(asked, environ) == language
