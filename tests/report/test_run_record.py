from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from launcher.base.errors import UsageError
from launcher.launch.life import this_head
from launcher.launch.run_folder import RunFolder
from launcher.report.run_record import number, read_record, read_records
from tests.report.folders import make_folder, make_lines, make_losses, make_metrics


def test_a_whole_folder(tmp_path: Path) -> None:
    record = read_record(make_folder(tmp_path / "a"))
    assert (record.name, record.state, record.problems) == ("a", "done", ())
    assert record.settings["train.max_steps"] == 40
    assert record.settings["train.weight_decay"] == 0.0
    assert [host["name"] for host in record.hosts] == ["node01", "node02"]
    assert len(record.metrics) == 40
    assert record.series("eval_loss") == [(20, 1.5), (40, 1.4)]
    assert (record.facts["vocab_size"], record.facts["unmoved"]) == (1000, 0)


@pytest.mark.parametrize(
    ("summary", "state"),
    [
        ({"exit": 1, "kind": "rank_failed"}, "failed"),
        ({"exit": 3, "kind": "preflight"}, "refused"),
        ({"exit": 4, "kind": "unreachable"}, "refused"),
        ({"exit": 5, "kind": "node_lost"}, "failed"),
        ({"exit": 143, "kind": "stopped"}, "stopped"),
        ({"exit": 138, "kind": "interrupted"}, "stopped"),
        (None, "broken"),
    ],
)
def test_how_it_ended(tmp_path: Path, summary: dict[str, object] | None, state: str) -> None:
    text = None if summary is None else json.dumps(summary)
    assert read_record(make_folder(tmp_path / "a", files={"summary.json": text})).state == state


def test_ranks_without_the_launcher_leave_a_folder_too(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(make_lines(make_metrics([2.0, 1.0])))
    record = read_record(tmp_path)
    assert (record.state, record.values("loss"), record.hosts) == ("unknown", [2.0, 1.0], [])


def test_damaged_files_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    rows = make_lines(make_metrics(make_losses(5)))
    half = rows + '{"step": 6, "lo'
    files = {
        "metrics.jsonl": "\x00\x00\n[1, 2]\n" + half,
        "events.jsonl": '{"kind": 7}\n{"time": "x", "kind": "start"}\n"text"\n',
        "hosts.json": '{"no": "list"}', "plan.json": "[1]", "preflight.json": "{cut", "summary.json": "[]",
        "config.yaml": "a: [1\nb: {",
    }  # fmt: skip
    record = read_record(make_folder(tmp_path / "a", files=files))
    assert [row["step"] for row in record.metrics] == [1, 2, 3, 4, 5]
    assert (record.hosts, dict(record.plan), record.findings) == ([], {}, [])
    assert record.problems == (
        "preflight.json: is no JSON",
        "config.yaml: is no recipe",
        "events.jsonl: 1 of 3 lines cannot be read",
        "metrics.jsonl: 2 of 7 lines cannot be read",
    )


def test_figures_that_are_none(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "loss": "NaN"},
        {"step": 2, "loss": 10**400},
        {"step": True, "loss": 1.0},
        {"step": 3, "loss": 2},
    ]
    record = read_record(make_folder(tmp_path / "a", rows))
    assert [step for step, value in record.series("loss") if math.isnan(value)] == [1, 2]
    assert number(10**400) is None
    assert number(True) is None
    assert (number(3), number(-0.5), number(math.inf)) == (3.0, -0.5, None)


def test_all_folders_that_are_none_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError) as error:
        read_records([tmp_path / "missing", tmp_path / "empty", make_folder(tmp_path / "a")])
    assert f"there is no run folder {tmp_path}/missing" in error.value.message
    assert f"{tmp_path}/empty is no run folder" in error.value.message


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    records = read_records([make_folder(tmp_path / place / "run") for place in ("x", "y")])
    assert [record.label for record in records] == ["x/run", "y/run"]


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    path = make_folder(tmp_path / "a", files={"summary.json": None, "events.jsonl": None})
    folder = RunFolder(path, "a")
    head = this_head("a", path, target="demo", kind="recipe", hosts=("node01",), detached=False, steps=40)
    (path / "head.json").write_text(head.to_json())
    folder.add_event("rank_started", host="node01", rank=0)
    assert read_record(path).state == "running"
    folder.close()
    assert read_record(path).state == "broken"
