"""docs/findings.md, in both languages, has a row for every code, with its level and cure, and no other."""

import re
from pathlib import Path

import pytest

from launcher.preflight.codes import CODES

DOCS = Path(__file__).resolve().parents[2] / "docs"


def rows_of(name):
    text = (DOCS / name).read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_0-9]+)` \| (\w) \| (.+?) \| (.+) \| (.+?) \|$", text, re.MULTILINE)
    return {code: (level, meaning, cure.replace("\\|", "|")) for code, level, meaning, _, cure in rows}, len(
        rows
    )


@pytest.mark.parametrize("name", ["findings.md", "findings.zh-CN.md"])
def test_every_code_is_explained_once(name):
    rows, count = rows_of(name)
    assert set(rows) == set(CODES)
    assert count == len(CODES)
    assert all(
        level == CODES[code].level[0].upper() and meaning for code, (level, meaning, _) in rows.items()
    )


def test_cures_are_those_that_findings_tell():
    rows, _ = rows_of("findings.md")
    assert {code: cure for code, (_, _, cure) in rows.items()} == {
        code: held.cure for code, held in CODES.items()
    }
