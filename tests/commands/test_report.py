"""``dcu-launch report`` and ``diagnose`` as a person calls them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from launcher.cli import main
from tests.report.folders import Page, make_folder, make_losses, make_metrics


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, in a locale of no language."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANG", "C.UTF-8")
    return tmp_path


def test_a_run_gets_its_page_and_picture(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(here / "runs" / "a")
    assert main(["report", "runs/a"]) == 0
    said = capsys.readouterr()
    assert said.out == "dcu-launch: report: runs/a/report.html\ndcu-launch: loss curve: runs/a/loss.png\n"
    page = Page((here / "runs/a/report.html").read_text(encoding="utf-8"))
    assert page.problems == []
    assert ("html", "lang", "en") in page.attributes
    assert (here / "runs/a/loss.png").read_bytes().startswith(b"\x89PNG")


def test_several_runs_are_compared_here(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [str(make_folder(here / "runs" / name)) for name in "abc"]
    assert main(["report", *folders, "--lang", "zh"]) == 0
    assert Page((here / "compare.html").read_text(encoding="utf-8")).texts["overview"]
    assert (here / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.startswith("dcu-launch: report: compare.html\n")


def test_the_page_goes_where_it_is_wanted(here: Path) -> None:
    make_folder(here / "a")
    assert main(["report", "a", "-o", "pages/mine"]) == 0
    assert sorted(entry.name for entry in (here / "pages").iterdir()) == ["mine.html", "mine.png"]
    assert not (here / "a" / "report.html").exists()


def test_the_locale_chooses_the_language(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(here / "a")
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert main(["report", "a"]) == 0
    assert 'lang="zh-CN"' in (here / "a" / "report.html").read_text(encoding="utf-8")


def test_a_run_without_losses_has_a_page_and_no_picture(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_folder(here / "a", files={"metrics.jsonl": None})
    assert main(["report", "a"]) == 0
    assert capsys.readouterr().out == "dcu-launch: report: a/report.html\n"


def test_mistakes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(here / "a")
    (here / "none").mkdir()
    assert main(["report", "a", "none"]) == 2
    assert "none is no run folder" in capsys.readouterr().err
    assert main(["report", "runs/missing"]) == 2
    assert main(["report", "missing"]) == 2
    assert main(["report", *["a"] * 17]) == 2
    assert main(["diagnose", "none"]) == 2
    (here / "file").write_text("")
    assert main(["report", "a", "-o", "file/page.html"]) == 2
    assert "file/page.html" in capsys.readouterr().err


def test_damage_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(here / "a", files={"events.jsonl": "{}\nno\n"})
    assert main(["report", "a"]) == 0
    assert "warning: a: events.jsonl: 1 of 2 lines cannot be read" in capsys.readouterr().err


def test_a_healthy_run_gives_no_verdict(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(here / "a")
    assert main(["diagnose", "a"]) == 0
    assert capsys.readouterr().out.split("\n")[1].startswith("Nothing stands out")


@pytest.mark.parametrize(
    ("language", "word"), [("en", "Why this threshold"), ("zh", "\u9608\u503c\u7406\u7531")]
)
def test_a_verdict_has_evidence_threshold_reason_and_cure(
    here: Path, capsys: pytest.CaptureFixture[str], language: str, word: str
) -> None:
    make_folder(here / "a", make_metrics(make_losses(), facts={"bytes_per_token": 1.05}))
    assert main(["diagnose", "a", "--lang", language]) == 0
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert lines[2].startswith("1. ")
    assert lines[2].endswith("(TEXT_SHREDDED)")
    assert "1.05" in lines[3]
    assert len(lines) == 7
    assert word in lines[6]


def test_for_scripts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_folder(here / "a", make_metrics(make_losses(), facts={"file_order_share": 1.0}))
    assert main(["diagnose", "a", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["state"], told["steps"]) == ("done", 40)
    assert [verdict["code"] for verdict in told["verdicts"]] == ["NOT_SHUFFLED"]
    assert set(told["verdicts"][0]) == {"code", "step", "title", "evidence", "threshold", "reason", "cure"}
    assert os.listdir(here / "a")
