"""Whether a head lives: a lock where it counts, a heartbeat where it does not; what a dead one leaves."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.launch import life
from launcher.launch.life import Head, is_alive, read_head, this_head
from launcher.launch.registry import register_run, registered_runs, registry_folder
from launcher.launch.run_folder import RunFolder
from launcher.launch.run_state import end_rows, read_run

DAY = 86400.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


def write_head(run_dir: Path, **changes: object) -> Head:
    head = this_head(
        "run", run_dir, target="t.py", kind="script", hosts=("a", "b"), detached=True, steps=None
    )
    head = replace(head, **changes)  # type: ignore[arg-type]
    (run_dir / "head.json").write_text(head.to_json())
    return head


def test_what_a_head_says_of_itself_comes_back(run_dir: Path) -> None:
    head = write_head(run_dir, steps=7)
    assert read_head(run_dir) == head
    assert (head.pid, head.hosts, head.detached) == (os.getpid(), ("a", "b"), True)
    assert head.ticks > 0


@pytest.mark.parametrize(
    ("text", "what"),
    [("", "is empty"), ("\0\0", "is no JSON"), ("{", "is no JSON"), ("[]", "is not what a head writes"),
     ('{"version": 1, "hosts": ["a"]}', "is not what a head writes")],
)  # fmt: skip
def test_a_damaged_head_is_told_and_not_taken_for_no_run(run_dir: Path, text: str, what: str) -> None:
    (run_dir / "head.json").write_text(text)
    assert read_head(run_dir) is None
    seen = read_run(run_dir)
    assert (seen.state, seen.exit, seen.head, seen.ended is not None) == ("damaged", 5, None, True)
    assert seen.why == f"head.json {what}: nothing else says who leads it, or how it ended"
    with open(run_dir / ".lock", "a") as lock:  # whose head lives can still be asked
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (read_run(run_dir).state, read_run(run_dir).exit) == ("running", None)
    (run_dir / "summary.json").write_text('{"exit": 0, "kind": "done"}')
    assert (read_run(run_dir).state, read_run(run_dir).why) == ("done", "")


def test_a_damaged_end_is_not_taken_for_a_dead_head(run_dir: Path) -> None:
    write_head(run_dir)
    (run_dir / "summary.json").write_text("")
    seen = read_run(run_dir)
    assert (seen.state, seen.exit) == ("damaged", 5)
    assert seen.why == "summary.json is empty: nothing else says who leads it, or how it ended"
    (run_dir / "head.json").unlink()
    (run_dir / "head.json").mkdir()
    assert read_run(run_dir).why.startswith(
        "head.json cannot be read (not a regular file) and summary.json is empty: "
    )


def test_a_run_without_head_and_end_is_damaged_and_other_folders_are_no_runs(run_dir: Path) -> None:
    assert read_run(run_dir) is None
    (run_dir / "plan.json").write_text("{}")
    assert read_run(run_dir) is None
    (run_dir / "events.jsonl").touch()
    assert read_run(run_dir).why.startswith("head.json and summary.json are missing: ")


def test_a_head_of_a_newer_version_is_known(run_dir: Path) -> None:
    head = write_head(run_dir)
    (run_dir / "head.json").write_text(json.dumps({**json.loads(head.to_json()), "more": 1}))
    assert read_head(run_dir) == head


def test_on_its_own_machine_the_lock_decides(run_dir: Path) -> None:
    head = write_head(run_dir)
    with open(run_dir / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_alive(run_dir, head)
    assert not is_alive(run_dir, head)  # however fresh its heartbeat


def test_from_elsewhere_a_fresh_heartbeat_is_life(run_dir: Path) -> None:
    head = write_head(run_dir, boot="another machine's")
    (run_dir / ".lock").touch()
    assert is_alive(run_dir, head)
    old = time.time() - life.STALE_S - 1
    os.utime(run_dir / ".lock", (old, old))
    assert not is_alive(run_dir, head)
    assert list(run_dir.glob(".now-*")) == []


def test_the_folder_beats_while_a_run_has_it(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "HEARTBEAT_S", 0.05)
    folder = RunFolder(run_dir, "run")
    os.utime(run_dir / ".lock", (0, 0))
    deadline = time.monotonic() + 5
    while os.stat(run_dir / ".lock").st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.stat(run_dir / ".lock").st_mtime > 0
    head = write_head(run_dir)
    folder.add_event("start")
    assert (read_run(run_dir).state, read_run(run_dir).exit) == ("starting", None)
    folder.add_event("rank_started", rank=0)
    folder.append("metrics.jsonl", b'{"step": 3, "loss": 1.5}\n{"step": 4, "lo')
    seen = read_run(run_dir)
    assert (seen.state, seen.step, seen.loss, seen.head) == ("running", 3, 1.5, head)
    folder.close()
    assert read_run(run_dir).state == "dead"


def test_a_dead_run_says_who_is_gone(run_dir: Path) -> None:
    head = write_head(run_dir, host="login7")
    seen = read_run(run_dir)
    assert (seen.state, seen.exit, seen.is_alive) == ("dead", 5, False)
    assert f"process {head.pid} on login7, is gone without a word" in seen.why


@pytest.mark.parametrize(
    ("summary", "state"),
    [({"exit": 0, "kind": "done"}, "done"), ({"exit": 143, "kind": "stopped", "message": "by x"}, "stopped"),
     ({"exit": 3, "kind": "preflight", "message": "by x"}, "failed")],
)  # fmt: skip
def test_an_end_that_was_told_counts(run_dir: Path, summary: dict, state: str) -> None:
    write_head(run_dir)
    (run_dir / "summary.json").write_text(json.dumps(summary))
    seen = read_run(run_dir)
    assert (seen.state, seen.exit, seen.why) == (state, summary["exit"], summary.get("message", ""))
    assert abs(seen.ended - time.time()) < 60


def test_rows_from_the_end_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("".join(json.dumps({"n": n, "x": "y" * 100}) + "\n" for n in range(5000)) + '{"n": 5000')
    rows = [row["n"] for row in end_rows(path)]
    assert rows[:2] == [4999, 4998]
    assert rows == list(range(4999, 4999 - len(rows), -1))
    assert 1000 < len(rows) < 3000


# -- the user's list


def test_the_list_is_the_users_alone_and_newest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert registered_runs() == []
    for name in ("one", "two", "one"):
        assert register_run(tmp_path / name) == ""
        time.sleep(0.01)
    assert registered_runs() == [tmp_path / "one", tmp_path / "two"]
    assert registry_folder() == tmp_path / "state" / "dcu-launch" / "runs"
    assert registry_folder().stat().st_mode & 0o777 == 0o700


def test_what_is_gone_for_long_is_forgotten(tmp_path: Path, empty_home: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    for path in (kept, tmp_path / "gone"):
        register_run(path)
    for entry in registry_folder().glob("*.json"):
        data = json.loads(entry.read_text())
        entry.write_text(json.dumps({**data, "started": data["started"] - 100 * DAY}))
    (registry_folder() / "broken.json").write_text("{")
    register_run(tmp_path / "new")
    assert registered_runs() == [tmp_path / "new", kept]


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert register_run(tmp_path / "run").endswith("Not a directory")
    assert registered_runs() == []
