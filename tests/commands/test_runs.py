"""A run in the background on this machine: followed, asked and ended by other processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.launch.life import read_head

DCU_LAUNCH = str(Path(sys.executable).parent / "dcu-launch")
#: says a line each 0.1 s, and one more when it is asked to end
SCRIPT = """
import os, signal, sys, time
def end(*_):
    print("ended", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
for n in range(int(sys.argv[1])):
    print("line", n, "of", os.environ["RANK"], flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def folder(tmp_path: Path, empty_home: Path) -> Iterator[Path]:
    (tmp_path / "talk.py").write_text(SCRIPT)
    yield tmp_path
    for path in tmp_path.glob("runs/*"):
        head = read_head(path)
        if head is not None and Path(f"/proc/{head.pid}/stat").exists():
            os.kill(head.pid, signal.SIGKILL)


def launch(folder: Path, *words: str, **run: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [DCU_LAUNCH, *words], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **run
    )  # type: ignore[call-overload]  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def open_launch(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Started, not waited for; all its words in one pipe."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    return subprocess.Popen([DCU_LAUNCH, *words], cwd=folder, text=True, **pipes)  # type: ignore[call-overload]


def start(folder: Path, count: int, *words: str) -> Path:
    done = launch(folder, "--nproc", "2", "--detach", *words, "talk.py", str(count))
    assert done.returncode == 0, done.stdout + done.stderr
    name = re.match(r"dcu-launch: (\S+) goes on in the background: process \d+ on ", done.stdout)
    assert name, done.stdout
    return folder / "runs" / name[1]


def wait(found: Callable[[], object], within_s: float = 20.0) -> object:
    deadline = time.monotonic() + within_s
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def test_a_detached_run_is_listed_followed_and_stopped(folder: Path) -> None:
    run = start(folder, 600, "--name", "talk")
    head = read_head(run)
    assert os.getsid(head.pid) == head.pid
    os.kill(head.pid, signal.SIGHUP)  # as when the terminal goes
    (row,) = json.loads(launch(folder, "ps", "--json").stdout)
    assert {
        "name": run.name,
        "state": "running",
        "exit": None,
        "ranks": 2,
        "hosts": ["localhost"],
    }.items() <= row.items()
    shown = launch(folder, "ps").stdout.split("\n")
    assert shown[0].split() == ["RUN", "STATE", "STEP", "LOSS", "HOSTS", "RANKS", "AGE", "HEAD", "FOLDER"]
    assert shown[1].split()[:6] == [run.name, "running", "-", "-", "1", "2"]

    wait(lambda: (run / "logs" / "localhost" / "rank-00001.log").read_text().count("\n") > 3)
    assert re.fullmatch(r"(line \d+ of 1\n){2}", launch(folder, "logs", "--rank", "1", "-n", "2").stdout)
    assert "[localhost:0] line 0 of 0\n" in launch(folder, "logs", run.name).stdout

    done = launch(folder, "stop")
    assert done.returncode == 0, done.stderr
    assert f"{run.name} is stopped, exit code 143: stopped by dcu-launch stop (" in done.stdout
    assert json.loads((run / "summary.json").read_text())["exit"] == 143
    assert (run / "logs" / "localhost" / "rank-00000.log").read_text().endswith("ended\n")
    again = launch(folder, "stop", run.name)
    assert (again.returncode, "does not run any more, it is stopped" in again.stderr) == (2, True)


def test_attach_shows_what_comes_and_ctrl_c_leaves_the_run_alone(folder: Path) -> None:
    run = start(folder, 600)
    with open_launch(folder, "attach") as watching:
        for line in watching.stdout:
            if "[localhost:1] line 9 of 1" in line:
                break
        watching.send_signal(signal.SIGINT)
        rest = watching.stdout.read()
    assert (watching.returncode, f"{run.name} goes on" in rest) == (0, True)
    with open_launch(folder, "logs", "-f") as following, open_launch(folder, "attach", run.name) as attached:
        assert "line" in following.stdout.readline()
        (run / "STOP").touch()
        told, said = attached.stdout.read(), following.stdout.read()
    assert (attached.returncode, f"{run.name} stopped: stopped by the file STOP" in told) == (143, True)
    assert (following.returncode, "ended" in said) == (0, True)


def test_a_head_that_was_killed_is_told_as_dead(folder: Path) -> None:
    run = start(folder, 600)
    pids = [event["data"]["pid"] for event in map(json.loads, (run / "events.jsonl").read_text().splitlines())
            if event["kind"] == "rank_started"]  # fmt: skip
    assert len(pids) == 2
    pid = read_head(run).pid
    os.kill(pid, signal.SIGKILL)
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    shown = launch(folder, "ps").stdout
    assert f"{run.name}: dead: its head, process {pid} on " in shown
    assert re.search(rf"^{run.name} +dead \(5\) ", shown, re.M)
    done = launch(folder, "attach", run.name)
    assert (done.returncode, "is gone without a word" in done.stderr) == (5, True)


def test_a_start_that_fails_is_told_at_once_with_its_exit_code(folder: Path) -> None:
    (folder / "hosts").write_text("nobody@127.0.0.1:9 slots=1\n")
    done = launch(folder, "--hosts", "hosts", "--detach", "--connect-timeout", "1", "talk.py", "1")
    assert (done.returncode, "127.0.0.1" in done.stderr) == (4, True), done.stderr
    assert "in the background" not in done.stdout
    done = launch(folder, "--detach", "--setup", "/no/such/file", "talk.py", "1")
    assert (done.returncode, "/no/such/file" in done.stderr) == (3, True), done.stderr
    done = launch(folder, "--detach", "--dry-run", "talk.py")
    assert (done.returncode, "a dry run starts nothing" in done.stderr) == (2, True)


def test_a_run_that_ends_before_it_is_up_gives_its_own_code(folder: Path) -> None:
    (folder / "bad.py").write_text("import sys\nsys.exit(7)\n")
    done = launch(folder, "--detach", "bad.py")
    # its end may come before or after the head has seen all ranks started
    assert done.returncode in (0, 7)
    shown = wait(
        lambda: [row for row in json.loads(launch(folder, "ps", "--json").stdout) if row["exit"] == 7]
    )
    assert shown[0]["state"] == "failed"


def test_a_folder_that_a_run_has_is_refused_and_its_log_stays_clean(folder: Path) -> None:
    run = start(folder, 600, "--run-dir", "runs/one")
    said = (run / "head.log").read_text()
    done = launch(folder, "--detach", "--run-dir", "runs/one", "talk.py", "1")
    assert (done.returncode, "another run is using it" in done.stderr) == (2, True)
    assert (run / "head.log").read_text() == said
    assert launch(folder, "stop", "--now", "runs/one").returncode == 0


def test_which_run_is_meant(folder: Path) -> None:
    done = launch(folder, "stop")
    assert (done.returncode, "no run of yours goes on" in done.stderr) == (2, True)
    done = launch(folder, "logs", "nothing")
    assert (done.returncode, "no run of yours has this name" in done.stderr) == (2, True)
    assert launch(folder, "ps").stdout == "no runs of the last day\n"
    first, second = start(folder, 600, "--name", "a"), start(folder, 600, "--name", "b")
    for verb in ("stop", "save"):
        done = launch(folder, verb)
        assert (done.returncode, "2 runs go on; name the one that you mean" in done.stderr) == (2, True)
        assert all(f"{run.name}  {run}" in done.stderr for run in (first, second))
    done = launch(folder, "save", first.name)
    assert (done.returncode, "decides itself when it saves" in done.stderr) == (2, True)
    other = folder / "other"
    other.mkdir()
    (other / "talk.py").write_text(SCRIPT)
    for verb in ("stop", "save"):
        done = launch(other, verb)  # what goes on elsewhere is never meant by chance
        assert (done.returncode, "2 runs go on, none of this folder" in done.stderr) == (2, True)
    third = start(other, 600, "--name", "c")
    try:
        assert "line 0 of 0" in launch(other, "logs").stdout
        done = launch(other, "stop", "--now")  # this folder's own, though three go on
        assert f"asked {third.name} ({third}) to stop" in done.stdout
    finally:
        launch(other, "stop", "--now", str(third))
    assert launch(folder, "stop", "--now", str(second)).returncode == 0
    done = launch(other, "stop", "--now")
    told = f"1 run goes on, none of this folder; name the one that you mean:\n  {first.name}  {first}"
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert launch(folder, "stop", "--now").returncode == 0


def test_a_damaged_run_folder_is_named_with_its_cure(folder: Path) -> None:
    run = start(folder, 3, "--run-dir", "runs/one")
    wait(lambda: (run / "summary.json").exists())
    (run / "summary.json").unlink()
    (run / "head.json").write_text("")
    (run / "plan.json").write_text("garbage")
    damage = "head.json is empty: nothing else says who leads it, or how it ended\n"
    cure = "hint: restore the file or its permissions, or judge by dcu-launch logs"
    for verb in ("stop", "save"):
        done = launch(folder, verb, "runs/one")
        assert done.returncode == 2
        assert f"one ({run}) is damaged: {damage}" in done.stderr
        assert cure in done.stderr
    done = launch(folder, "attach", "runs/one")
    assert (done.returncode, f"one damaged: {damage}" in done.stderr, cure in done.stderr) == (5, True, True)
    done = launch(folder, "logs", "runs/one")  # the ranks' files are there all the same
    assert (done.returncode, f"one is damaged: {damage}" in done.stderr) == (0, True)
    assert "[localhost:1] line 2 of 1\n" in done.stdout
    assert (
        launch(folder, "logs", "runs/one", "--rank", "0").stdout == "line 0 of 0\nline 1 of 0\nline 2 of 0\n"
    )
    assert re.search(r"^one +damaged \(5\) ", launch(folder, "ps").stdout, re.M)
    assert f"one: damaged: {damage}" in launch(folder, "ps").stdout
