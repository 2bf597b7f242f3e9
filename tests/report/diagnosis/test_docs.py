"""Rules, texts in both languages and the pages about them say the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from launcher.report.diagnosis import texts_en, texts_zh
from launcher.report.diagnosis.rules import RULES

ROOT = Path(__file__).resolve().parents[3]
TEXTS = {"docs/diagnosis.md": texts_en.TEXTS, "docs/diagnosis.zh-CN.md": texts_zh.TEXTS}


@pytest.mark.parametrize("page", TEXTS)
def test_each_verdict_has_its_section_with_its_reason(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    assert [name for name in sections if name in RULES] == list(RULES)
    for code in RULES:
        section = re.sub(r"\s+", " ", sections[code])
        assert TEXTS[page][code]["title"] in section
        assert TEXTS[page][code]["reason"] in section, code


def test_texts_have_the_same_fields_and_values() -> None:
    assert list(texts_en.TEXTS) == list(texts_zh.TEXTS)
    assert set(texts_en.TEXTS) == set(RULES)
    for code, fields in texts_en.TEXTS.items():
        assert list(fields) == list(texts_zh.TEXTS[code])
        for name, text in fields.items():
            other = texts_zh.TEXTS[code][name]
            assert set(re.findall(r"{(\w+)}", text)) == set(re.findall(r"{(\w+)}", other)), (code, name)
