"""The pages: links lead somewhere, commands are ones that dcu-launch takes, and each page has its Chinese one."""

from __future__ import annotations

import importlib
import re
import shlex
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import click
import pytest

from launcher.base import errors
from launcher.base.config import Recipe, leaf_types, to_dict
from launcher.base.limits import CHOICES, flatten
from launcher.base.recipe import _OTHER_WORDS as OTHER_WORDS
from launcher.base.shipped import shipped_recipes
from launcher.base.variable import DCU_DEFAULTS, LAUNCHER_NAMES, RANK_DEFAULTS, SENT_PATTERNS
from launcher.cli import VERBS
from launcher.commands.options import VERB_HELP

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
CHINESE = ".zh-CN.md"
_LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
#: stands for something that the reader has to put in
_HOLE = re.compile(r"<[^<>|]*>")


@dataclass(frozen=True)
class Command:
    """A dcu-launch command of a page, and where it stands."""

    place: str
    words: tuple[str, ...]


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


# ---- links


def slugs(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    found: set[str] = set()
    fenced = False
    for line in text_of(page).split("\n"):
        fenced ^= line.startswith("```")
        heading = re.match(r"#{1,6} (.*)", line)
        if heading and not fenced:
            plain = re.sub(r"[^\w\- ]", "", heading[1].strip().lower())
            found.add(plain.replace(" ", "-"))
    return found


def links() -> list[tuple[Path, str]]:
    return [(page, target) for page in PAGES for target in _LINK.findall(text_of(page))]


def test_links_are_found() -> None:
    assert len(links()) > 80


def test_links_lead_to_what_is_there() -> None:
    broken = []
    for page, target in links():
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            broken.append(f"{name_of(page)}: {target}: no such file")
        elif anchor and file.suffix == ".md" and anchor not in slugs(file):
            broken.append(f"{name_of(page)}: {target}: no such heading; there are {sorted(slugs(file))}")
    assert broken == []


def test_each_page_of_the_docs_has_its_other_language() -> None:
    english = {page.name.removesuffix(".md") for page in PAGES if not page.name.endswith(CHINESE)}
    chinese = {page.name.removesuffix(CHINESE) for page in PAGES if page.name.endswith(CHINESE)}
    assert english - chinese == {"CHANGELOG", "CONTRIBUTING"}
    assert chinese - english == set()


def shape_of(page: Path) -> tuple[list[int], list[int]]:
    """(levels of headings, rows of each table) in their order."""
    lines = [line for _, line in outside_code(page)]
    runs = groupby(lines, key=lambda line: line.startswith("|"))
    return (
        [len(line) - len(line.lstrip("#")) for line in lines if re.match(r"#+ ", line)],
        [len(list(rows)) for is_table, rows in runs if is_table],
    )


def outside_code(page: Path) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(text_of(page).split("\n"), start=1):
        fenced ^= line.startswith("```")
        if not fenced and not line.startswith("    "):
            yield number, line


def test_both_languages_have_the_same_headings_and_rows() -> None:
    pairs = [
        (page, page.with_name(page.name.replace(".md", CHINESE)))
        for page in PAGES
        if page.with_name(page.name.replace(".md", CHINESE)) in PAGES
    ]
    assert len(pairs) > 15
    assert [name_of(one) for one, other in pairs if shape_of(one) != shape_of(other)] == []


def test_chinese_pages_lead_to_chinese_ones() -> None:
    wrong = [
        f"{name_of(page)}: {target}"
        for page, target in links()
        if page.name.endswith(CHINESE)
        and (page.parent / target.partition("#")[0]).with_suffix("").with_suffix(CHINESE).exists()
        and CHINESE not in target
        and target.partition("#")[0].endswith(".md")
        and (page.parent / target.partition("#")[0]).name != page.name.replace(CHINESE, ".md")
    ]
    assert wrong == []


# ---- commands


def code_lines(page: Path) -> Iterator[tuple[int, str]]:
    """Lines of code blocks, fenced or indented, with those that end in a backslash joined, and code in the text."""
    fenced, joined, start = False, "", 0
    for number, line in enumerate(text_of(page).split("\n"), start=1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        if not fenced and not line.startswith("    "):
            yield from ((number, code) for code in re.findall(r"`([^`\n]+)`", line))
            continue
        start = start if joined else number
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        yield start, joined
        joined = ""


def read_command(line: str) -> list[str] | None:
    """The words behind ``dcu-launch`` on a line of shell; None when there are none, or it is no whole command."""
    found = re.match(r"(?:.*(?:&& |; |\$ )|exec |time |\$ |eval \"\$\()?dcu-launch(?: (.*))?$", line)
    if found is None or re.match(r"dcu-launch: ", line):
        return None
    rest = _HOLE.sub("HOLE", found[1] or "").removesuffix(')"')
    try:
        words = shlex.split(rest, comments=True)
    except ValueError:
        return None
    for index, word in enumerate(words):
        if word in ("|", ">", ">>", "&&", "&", "||", ";", "2>"):
            return words[:index]
    return [word.rstrip(";") for word in words]


def commands() -> list[Command]:
    found = []
    for page in PAGES:
        for number, line in code_lines(page):
            words = read_command(line)
            if words is not None and page.name != "CHANGELOG.md":
                found.append(Command(f"{name_of(page)}:{number}", tuple(words)))
    return found


def what_is_wrong(words: list[str]) -> str:
    """Why dcu-launch would refuse these words; empty when it would not."""
    if words in ([], ["--version"]) or words[0] == "--completion" or words in [[verb] for verb in VERBS]:
        return ""
    if words == ["..."] or words[-1] in ("...", "…"):
        words = words[:-1]
    verb = words.pop(0) if words and words[0] in VERBS else "run"
    module, name, _ = VERBS[verb]
    command = getattr(importlib.import_module(module), name)
    try:
        context = command.make_context(verb, words)
    except click.exceptions.Exit:
        return ""
    except click.ClickException as error:
        return error.format_message()
    rest = list(context.params.get("words") or ())
    target = rest[0] if rest else ""
    if target.startswith("configs/") and not (ROOT / target).exists():
        return f"there is no {target}"
    if target.endswith((".yaml", ".yml")) or "=" in target.partition(" ")[0]:
        keys = [word.partition("=")[0] for word in rest if "=" in word]
        wrong = [key for key in keys if key not in leaf_types() and not key.startswith("env.")]
        return f"there is no key {', '.join(wrong)}" if wrong else ""
    if (
        target
        and not target.endswith(".py")
        and not context.params.get("as_module")
        and verb in ("run", "submit")
    ):
        return f"{target} is no target"
    return ""


def test_commands_are_found() -> None:
    assert len(commands()) > 100
    assert {command.words[0] for command in commands() if command.words} >= set(VERBS) - {"run"}


def test_commands_are_ones_that_dcu_launch_takes() -> None:
    wrong = [
        f"{command.place}: dcu-launch {' '.join(command.words)}: {problem}"
        for command in commands()
        if (problem := what_is_wrong(list(command.words)))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("check --host x", "No such option '--host'"),
        ("configs/lora.yaml train.lr=1", "there is no key train.lr"),
        ("configs/qlora.yaml", "there is no configs/qlora.yaml"),
        ("tarin", "tarin is no target"),
        ("merge --dtype bf16", "Missing argument"),
    ],
)
def test_commands_that_would_be_refused_are_noticed(words: str, problem: str) -> None:
    assert problem in what_is_wrong(words.split())


def test_every_recipe_is_named_on_a_page() -> None:
    text = "".join(text_of(page) for page in PAGES)
    assert [name for name in shipped_recipes() if f"{name}.yaml" not in text] == []


# ---- keys of recipes, names of variables


def rows_of(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the table below a heading by the code in their first cell."""
    text = text_of(ROOT / "docs" / page).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        for line in text.split("\n")
        if line.startswith("| `")
    ]
    return {name: rest for first, *rest in cells for name in re.findall(r"`([^`]+)`", first)}


def spell(value: object) -> str:
    """A default as the page writes it."""
    words = {None: "null", True: "true", False: "false"}
    if isinstance(value, list | dict):
        return "[]" if isinstance(value, list) else "{}"
    return words[value] if value is None or isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("page", "heading"), [("training.md", "Keys"), ("training.zh-CN.md", "键")])
def test_every_key_of_the_schema_is_explained_with_its_default_and_its_words(page: str, heading: str) -> None:
    defaults = dict(flatten(to_dict(Recipe())))
    rows = rows_of(page, heading)
    assert list(rows) == list(defaults), "keys, in the order of the schema"
    for key, (default, meaning) in rows.items():
        assert default == ("-" if defaults[key] == "" else f"`{spell(defaults[key])}`"), key
        named = set(re.findall(r"`([^`]+)`", meaning))
        assert set(CHOICES.get(key, ())) <= named, f"{key}: words that are not named"


@pytest.mark.parametrize(
    ("page", "heading", "pattern"),
    [
        ("environment.md", "Every rank has", "Sent by pattern"),
        ("environment.zh-CN.md", "每个 rank 都有", "按模式发送"),
    ],
)
def test_variables_that_ranks_have_and_those_that_are_sent_are_all_named(
    page: str, heading: str, pattern: str
) -> None:
    assert set(rows_of(page, heading)) == LAUNCHER_NAMES
    sections = {part.split("\n")[0]: part for part in text_of(ROOT / "docs" / page).split("\n## ")}
    assert tuple(re.search(r"`([^`]+)`", sections[pattern])[1].split()) == SENT_PATTERNS  # type: ignore[index]
    text = text_of(ROOT / "docs" / page)
    assert [name for name in (*DCU_DEFAULTS, *RANK_DEFAULTS) if f"`{name}" not in text] == []


@pytest.mark.parametrize("page", ["coming-from.md", "coming-from.zh-CN.md"])
def test_words_of_other_trainers_lead_to_the_keys_that_a_refusal_names(page: str) -> None:
    """Every word that a recipe is refused for with ``did you mean`` and that LLaMA-Factory has, beside its key."""
    rows = rows_of(page, "LLaMA-Factory")
    assert len(rows) > 30
    known = {word: key for word, key in OTHER_WORDS.items() if word in rows}
    assert len(known) > 15
    wrong = [f"{word}: {key}" for word, key in known.items() if f"`{key}`" not in rows[word][0]]
    assert wrong == []


@pytest.mark.parametrize(
    "page", ["docs/exit-codes.md", "docs/exit-codes.zh-CN.md", "README.md", "README.zh-CN.md"]
)
def test_every_exit_code_has_its_row(page: str) -> None:
    told = " ".join(line.split("|")[1] for _, line in outside_code(ROOT / page) if line.startswith("|"))
    codes = {error.exit_code for error in vars(errors).values() if hasattr(error, "exit_code")}
    codes |= {0, *(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1))}
    assert codes >= {0, 1, 2, 3, 4, 5, 70, 138}
    assert sorted(codes - {int(number) for number in re.findall(r"\d+", told)}) == []
    words = set(re.findall(r"\d+", VERB_HELP.partition("Exit codes:")[2]))
    assert codes <= {int(word) for word in words}
