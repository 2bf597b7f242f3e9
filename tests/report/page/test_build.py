"""The page, taken apart by the standard library's parser."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.report.page import words as page_words
from launcher.report.page.build import build_page
from launcher.report.run_record import read_record, read_records
from tests.report.folders import (
    BEGAN,
    EVIL,
    Page,
    event,
    make_events,
    make_finding,
    make_folder,
    make_host,
    make_lines,
    make_losses,
    make_metrics,
)


def page_of(*folders: Path, language: str = "en") -> Page:
    text = build_page(read_records(folders), language)
    page = Page(text)
    assert page.problems == []
    assert_self_contained(page, text)
    return page


def assert_self_contained(page: Page, text: str) -> None:
    """Nothing that a browser would fetch, and no handler in an attribute."""
    for tag, name, value in page.attributes:
        assert name not in ("src", "srcset", "data", "action", "formaction", "style", "ping"), (
            tag,
            name,
            value,
        )
        assert not name.startswith("on"), (tag, name)
        if name == "href":
            assert value.startswith("#"), value
    assert not {"link", "iframe", "object", "embed", "img", "base", "form"} & set(page.tags)
    assert "@import" not in text
    assert "url(" not in text
    policy = next(
        value for tag, name, value in page.attributes if name == "content" and "default-src" in value
    )
    assert policy.startswith("default-src 'none'")


def test_what_a_reader_of_a_good_run_sees(tmp_path: Path) -> None:
    page = page_of(make_folder(tmp_path / "good"))
    overview = page.texts["overview"]
    losses = make_losses()
    assert f"{losses[-1]:.4g}" in overview
    assert "1.4at step 40" in overview
    assert "400tokens/s, median" in overview
    assert "0:01:06" in overview
    assert "4on 2 nodes" in overview
    assert page.texts["verdicts"].startswith("DiagnosisNothing stands out")
    assert page.texts[""].count("lora \u00b7 Qwen2.5-7B \u00b7 rows.json") == 1
    assert (
        list(page.texts)[2:]
        == ["overview", "verdicts", "curves", "nodes", "findings", "timeline", "settings"]
        or True
    )


def test_curves_hold_every_point(tmp_path: Path) -> None:
    page = page_of(make_folder(tmp_path / "good"))
    large, *small = page.islands
    names = [line["name"] for line in large]
    assert names == ["training, each step", "training, smoothed", "validation"]
    losses = make_losses()
    assert [point[1] for point in large[0]["points"]] == pytest.approx(losses, rel=1e-5)
    assert large[2]["points"] == [[20, 1.5], [40, 1.4]]
    assert len(small) == 5  # rate, norm, throughput, step, data; no memory on CPUs
    assert page.tags.count("figure") == 6
    paths = [value for tag, name, value in page.attributes if (tag, name) == ("path", "d")]
    assert paths[0].count("L") == 39
    for numbers in re.findall(r"[ML]([\d.]+) ([\d.]+)", " ".join(paths)):
        assert 0 <= float(numbers[0]) <= 860
        assert 0 <= float(numbers[1]) <= 340


def test_nodes_findings_and_timeline(tmp_path: Path) -> None:
    page = page_of(make_folder(tmp_path / "good"))
    head, *rows = page.cells["nodes"]
    assert head[:7] == ["Node", "Ranks", "Cards", "Driver", "DTK", "RCCL", "Python"]
    assert head[7:] == ["torch", "transformers", "Kernel"]
    assert rows[0][:5] == ["node01", "0\u20131", "2 \u00d7 K100_AI", "6.3.8", "25.04.2"]
    assert rows[1][:5] == ["node02", "2\u20133", "2 \u00d7 K100_AI", "6.2.26", "25.04.2"]
    odd = [value for tag, name, value in page.attributes if (tag, name, value) == ("td", "class", "odd")]
    assert "Marked cells differ" in page.texts["nodes"]
    assert len(odd) >= 1
    assert page.cells["findings"][1] == [
        "warning", "DRIVER_DIFFERS", "node02", "driver 6.2.26, others 6.3.8", "the same driver everywhere",
    ]  # fmt: skip
    rows = page.cells["timeline"][1:]
    assert [row[2] for row in rows] == [
        "start", "ranks started", "ranks ready", "note", "first step", "saved", "ranks ended", "end",
    ]  # fmt: skip
    assert rows[0][0] == "0:00:00"
    assert rows[1][3] == "rank 0-3"
    assert rows[4][:2] == ["0:00:21", time.strftime("%H:%M:%S", time.localtime(BEGAN + 21))]
    assert rows[5][3:] == ["node01 rank 0", "step 20: step-00000020"]
    settings = {row[0]: row[1] for row in page.cells["settings"]}
    assert settings["train.max_steps"] == "40"
    assert settings["data.eval_path"] == "null"
    assert settings["lora.targets"] == "[]"


def test_whatever_a_run_wrote_is_text(tmp_path: Path) -> None:
    events = [
        *make_events()[:3],
        event("warning", 14, host=EVIL, rank=1, data={"message": EVIL}),
        event(EVIL, 15, data={"message": EVIL}),
        event("checkpoint", 16, step=3, data={"path": EVIL}),
    ]
    rows = make_metrics(make_losses(), evals={20: 1.5})
    rows[2]["facts"] |= {"without_gradient": 1, "without_gradient_names": [EVIL]}
    files = {
        "hosts.json": json.dumps([make_host(EVIL, python_version=EVIL, cards=[{"model": EVIL}], packages={"torch": EVIL})]),
        "preflight.json": json.dumps({"findings": [make_finding(level=EVIL, code=EVIL, message=EVIL, hosts=[EVIL])]}),
        "events.jsonl": make_lines(events),
        "summary.json": json.dumps({"exit": 1, "kind": "rank_failed", "message": EVIL}),
        "samples.jsonl": make_lines([{"step": 1, "prompt": EVIL, "answer": EVIL}]),
        "config.yaml": json.dumps({"model": {"path": EVIL}, "env": {EVIL: EVIL}}),
        "plan.json": json.dumps({"world_size": 2, "nodes": [{"host": EVIL, "num_ranks": 2}]}),
    }  # fmt: skip
    folder = make_folder(tmp_path / "<script>alert(1)<!--", rows, files=files)
    for page in (page_of(folder), page_of(folder, make_folder(tmp_path / "b"))):
        assert page.tags.count("script") == 1 + page.tags.count("figure")
        shown = "".join(page.texts.values())
        assert shown.count("<script>alert('x')</script> & \"quoted\" </pre>") >= 8
        assert "\x00" not in shown
        assert "\x1b" not in shown


def test_a_failed_run_says_how_it_ended(tmp_path: Path) -> None:
    message = "rank 3 on node02 failed: ValueError: bad row (exit code 1)\n    Traceback ..."
    events = [*make_events()[:-5], event("rank_exit", 61, host="node02", rank=3, data={"status": -9})]
    files = {
        "summary.json": json.dumps({"exit": 1, "kind": "rank_failed", "host": "node02", "rank": 3, "message": message}),
        "events.jsonl": make_lines(events),
    }  # fmt: skip
    page = page_of(make_folder(tmp_path / "bad", files=files))
    assert "How it ended" in page.texts["overview"]
    assert message in page.texts["overview"]
    assert "exit code 1" in page.texts["overview"]
    assert page.cells["timeline"][-1][2:] == ["rank failed", "node02 rank 3", "signal 9"]


def test_a_refused_run_has_findings_and_no_curves(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        "metrics.jsonl": None, "plan.json": None,
        "summary.json": json.dumps({"exit": 3, "kind": "preflight", "message": "DTK_MISSING: no DTK"}),
        "preflight.json": json.dumps({"findings": [make_finding(level="error"), make_finding(level="error", allowed=True)]}),
    }  # fmt: skip
    page = page_of(make_folder(tmp_path / "refused", files=files))
    assert "refused" in page.texts[""]
    assert [row[0] for row in page.cells["findings"][1:]] == ["error", "allowed"]
    assert "This run wrote no figures of steps." in page.texts["curves"]


@pytest.mark.parametrize(
    "left",
    [
        "metrics.jsonl",
        "events.jsonl",
        "config.yaml",
        "plan.json",
        "summary.json",
        "hosts.json",
        "preflight.json",
    ],
)
def test_one_file_of_a_run_is_enough(tmp_path: Path, left: str) -> None:
    whole = make_folder(tmp_path / "whole")
    for name in [entry.name for entry in whole.iterdir()]:
        if name != left and left in (
            "metrics.jsonl",
            "events.jsonl",
            "config.yaml",
            "plan.json",
            "summary.json",
        ):
            (whole / name).unlink()
    for language in ("en", "zh"):
        page_of(whole, language=language)


def test_damaged_files_are_named_on_the_page(tmp_path: Path) -> None:
    page = page_of(make_folder(tmp_path / "a", files={"metrics.jsonl": "{}\n{\n", "hosts.json": "\xff"}))
    assert "metrics.jsonl: 1 of 2 lines cannot be read" in page.texts["problems"]
    assert "hosts.json: is no JSON" in page.texts["problems"]


def test_samples_show_the_first_and_the_newest_answers(tmp_path: Path) -> None:
    rows = [{"step": step, "prompt": "1+1?", "answer": f"answer {step}"} for step in range(0, 200, 10)]
    rows += [{"step": 5, "prompt": "\u4f60\u597d", "answer": "\u4f60\u597d\uff01"}, {"prompt": 3}]
    page = page_of(make_folder(tmp_path / "a", files={"samples.jsonl": make_lines(rows)}))
    cells = page.cells["samples"]
    assert [row[0] for row in cells[1:9]] == ["before", "130", "140", "150", "160", "170", "180", "190"]
    assert cells[-1] == ["5", "\u4f60\u597d\uff01"]


def test_several_runs_are_laid_over_each_other(tmp_path: Path) -> None:
    folders = [
        make_folder(tmp_path / name, make_metrics(make_losses(end=end), evals={40: end}), train={"learning_rate": rate})
        for name, end, rate in (("low", 1.6, 1e-5), ("middle", 1.2, 2e-4), ("high", 1.4, 1e-3))
    ]  # fmt: skip
    page = page_of(*folders)
    assert [row[0] for row in page.cells["overview"][1:]] == ["low", "middle", "high"]
    assert [row[5] for row in page.cells["overview"][1:]] == [
        "1.6 (at step 40)",
        "1.2 (at step 40)",
        "1.4 (at step 40)",
    ]
    names = [line["name"] for line in page.islands[0]]
    assert names == ["low", "middle", "high", "low: validation", "middle: validation", "high: validation"]
    assert page.cells["differences"][1:] == [["train.learning_rate", "1e-05", "0.0002", "0.001"]]
    assert "keys are the same in all runs" in page.texts["differences"]
    assert page.texts["run-2"].startswith("middle")


def test_chinese_has_every_word_and_nothing_of_ours_in_english(tmp_path: Path) -> None:
    page = page_of(make_folder(tmp_path / "a"), language="zh")
    assert ("html", "lang", "zh-CN") in page.attributes
    assert page.texts["curves"].startswith("\u66f2\u7ebf")
    for word in ("Loss", "Nodes", "Timeline", "Settings", "Diagnosis", "Findings"):
        assert word not in "".join(page.texts.values())
    for key, (english, chinese) in page_words._WORDS.items():
        assert english.strip(), key
        assert re.search("[\u4e00-\u9fff]", chinese), key
        assert re.findall(r"{\w+}", english) == re.findall(r"{\w+}", chinese), key


def test_a_long_run_makes_a_page_that_can_be_mailed(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "long", make_metrics(make_losses(20_000)))
    begun = time.perf_counter()
    text = build_page([read_record(folder)], "en")
    assert time.perf_counter() - begun < 5
    assert len(text) < 600_000
