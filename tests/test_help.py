"""The option surface, frozen: the help page of each verb as it was kept. A new option is accepted, not slipped in."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.cli import VERBS
from tests.golden import check_golden

GOLDEN = Path(__file__).parent / "help"
WIDTH = 100


def shown_verbs() -> list[str]:
    return [verb for verb, (module, *_) in VERBS.items() if find_spec(module) is not None]


@pytest.mark.parametrize("verb", shown_verbs())
def test_help_of_each_verb(verb, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    module, name, _ = VERBS[verb]
    command = getattr(importlib.import_module(module), name)
    prog_name = f"dcu-launch {verb}".removesuffix(" run")
    result = CliRunner().invoke(command, ["--help"], prog_name=prog_name, terminal_width=WIDTH)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.split("\n"))) <= WIDTH
    check_golden(GOLDEN / f"{verb}.txt", result.output)


def test_each_help_page_has_its_verb():
    assert {path.stem for path in GOLDEN.iterdir()} == set(shown_verbs())
