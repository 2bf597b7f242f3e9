"""The option surface, frozen: the help page of each verb as it was kept. A new option is accepted, not slipped in."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.cli import VERBS, load_command
from launcher.commands.examples import EXAMPLES, EXIT_CODES
from launcher.commands.options import VERB_HELP
from tests.golden import check_golden
from tests.test_docs import read_command, what_is_wrong

GOLDEN = Path(__file__).parent / "help"
WIDTH = 100


def shown_verbs() -> list[str]:
    return [verb for verb, (module, *_) in VERBS.items() if find_spec(module) is not None]


@pytest.mark.parametrize("verb", shown_verbs())
def test_help_of_each_verb(verb, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    command = load_command(verb)
    prog_name = f"dcu-launch {verb}".removesuffix(" run")
    result = CliRunner().invoke(command, ["--help"], prog_name=prog_name, terminal_width=WIDTH)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.output.split("\n"))) <= WIDTH
    assert re.search(r"^  -h, --help +Show this message and exit\.$", result.output, re.M)
    check_golden(GOLDEN / f"{verb}.txt", result.output)


def test_each_help_page_has_its_verb():
    assert {path.stem for path in GOLDEN.iterdir()} == set(shown_verbs())


def test_the_first_page_names_every_verb():
    told = re.findall(
        r"^  (\w+(?:, \w+)*)  ", VERB_HELP.partition("Verbs ")[2].partition("Completion")[0], re.M
    )
    assert sorted(word for words in told for word in words.split(", ")) == sorted(VERBS)


def test_every_verb_has_examples_that_it_takes():
    assert set(EXAMPLES) == set(VERBS) - {"run"}
    lines = [f"dcu-launch {verb} {words}" for verb, examples in EXAMPLES.items() for words in examples]
    lines += re.findall(r"^  (dcu-launch.*?)(?:  +\(.*)?$", VERB_HELP, re.M)
    assert len(lines) > 40
    assert [(line, wrong) for line in lines if (wrong := what_is_wrong(read_command(line) or []))] == []
    assert set(EXIT_CODES) < set(VERBS)
