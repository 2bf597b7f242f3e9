"""Stopped at any moment, by any means: the right exit code, no traceback of ours, and nothing left on any host."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from launcher.launch.signals import REFUSAL
from tests.lab.lab import Lab
from tests.launch.faulty_run import STOPS, FaultyRun

pytestmark = pytest.mark.lab

#: seconds until all is gone when nobody needs a grace; three times what is promised
SOON_S = 9.0
ASLEEP = "up()\ntime.sleep(700)\n"
LOCAL = pytest.mark.parametrize("where", ["two hosts", "this host"])


def start(lab: Lab, folder: Path, where: str, program: str, *words: str, **options: object) -> FaultyRun:
    """On two hosts, or without SSH on one."""
    if where == "two hosts":
        return FaultyRun(lab, folder, program, *words, **options)
    return FaultyRun(lab, folder, program, *words, hosts=1, hostfile="localhost slots=2\n", **options)


# ---- before ranks are up


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.2, 0.5, 0.9])
def test_at_the_very_start(lab: Lab, lab_path: Path, after_s: float, number: signal.Signals) -> None:
    """Imports, reading of files, connecting, asking: at every one of these moments."""
    run = FaultyRun(lab, lab_path, ASLEEP)
    time.sleep(after_s)
    run.signal(number)
    code, _ = run.wait_end(SOON_S)
    in_python_itself = code != STOPS[number]  # before it ran a line of ours
    assert "/launcher/" not in run.said() if in_python_itself else "Traceback" not in run.said()
    assert in_python_itself or number == signal.SIGINT or "dcu-launch: error: stopped " in run.said()


@pytest.mark.parametrize("number", STOPS)
def test_while_hosts_are_being_reached(lab: Lab, lab_path: Path, number: signal.Signals) -> None:
    lab.up(2)
    lab.cut(2)
    run = FaultyRun(lab, lab_path, ASLEEP, "--connect-timeout", "60")
    run.wait_for(lambda: (run.folder / "out" / "events.jsonl").exists(), "a run folder")
    time.sleep(0.5)
    run.signal(number)
    assert run.head.wait(SOON_S) == STOPS[number]
    lab.wait_gone(1, within_s=SOON_S)
    run.check(STOPS[number], "stopped", "stopped while the hosts were being reached")


@LOCAL
def test_while_a_set_up_script_runs(lab: Lab, lab_path: Path, where: str) -> None:
    script = lab_path / "slow.sh"
    script.write_text("sleep 704\n")
    run = start(lab, lab_path, where, ASLEEP, "--setup", str(script))
    run.wait_for(lambda: all(run.processes(host, "sleep 704") for host in run.hosts), "the set-up script")
    run.signal(signal.SIGINT)
    run.wait_end(SOON_S)
    run.check(130, "stopped", "stopped before the ranks were started")


@LOCAL
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_while_ranks_are_starting(lab: Lab, lab_path: Path, where: str, method: str) -> None:
    """Rank 0 is there, and not up."""
    run = start(lab, lab_path, where, "time.sleep(700)\n", "--start", method)
    run.wait_for(lambda: '"rank_started"' in (run.folder / "out" / "events.jsonl").read_text()
                 if (run.folder / "out" / "events.jsonl").exists() else False, "a rank")  # fmt: skip
    run.signal(signal.SIGINT)
    run.wait_end(SOON_S)
    run.check(130, "stopped", "stopped by SIGINT after asking the ranks")


def test_while_the_training_stack_is_imported(lab: Lab, lab_path: Path) -> None:
    (lab_path / "torch.py").write_text("import time\ntime.sleep(705)\n")
    words = ["--start", "fork", "--env", f"PYTHONPATH={lab_path}", "--lost-after", "2", "--grace", "60"]
    run = FaultyRun(lab, lab_path, "import torch\n" + ASLEEP, *words)
    run.wait_for((run.folder / "out" / "plan.json").exists, "a plan")
    time.sleep(3)  # longer than a silent node would be borne
    run.signal(signal.SIGINT)
    run.wait_end(SOON_S)
    run.check(130, "stopped", "stopped by SIGINT after asking the ranks")


# ---- while ranks are up


@pytest.mark.parametrize("number", STOPS)
def test_on_one_host_without_ssh(lab: Lab, lab_path: Path, number: signal.Signals) -> None:
    run = start(lab, lab_path, "this host", ASLEEP)
    run.wait_up()
    run.signal(number)
    run.wait_end(SOON_S)
    run.check(STOPS[number], "stopped", f"stopped by {number.name} after asking the ranks")


def test_an_interrupt_a_moment_after_a_failure_does_not_hide_it(lab: Lab, lab_path: Path) -> None:
    run = FaultyRun(lab, lab_path, "up()\nrank == 3 and sys.exit(3)\n" + ASLEEP)
    run.wait_for(lambda: '"rank_exit"' in (run.folder / "out" / "events.jsonl").read_text()
                 if (run.folder / "out" / "events.jsonl").exists() else False, "a failure")  # fmt: skip
    run.signal(signal.SIGINT)
    run.wait_end(SOON_S)
    run.check(3, "rank_failed", r"\Arank 3 on node002 failed: exit code 3", origin="rank", rank=3)


def test_a_stop_from_the_terminal_is_answered_by_a_line(lab: Lab, lab_path: Path) -> None:
    run = FaultyRun(
        lab, lab_path, "up()\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n", "--lost-after", "1"
    )
    run.wait_up()
    run.signal(signal.SIGTSTP)
    run.wait_said(REFUSAL.decode())
    time.sleep(2)
    (run.folder / "go").touch()
    run.wait_end(SOON_S)
    run.check(0, "done")


def test_a_hang_up_ignored_from_the_start_stays_ignored(lab: Lab, lab_path: Path) -> None:
    program = "up()\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    run = FaultyRun(lab, lab_path, program, before=["nohup"])
    run.wait_up()
    run.signal(signal.SIGHUP)
    time.sleep(1)
    (run.folder / "go").touch()
    run.wait_end(SOON_S)
    run.check(0, "done")


# ---- when nobody listens any more


@pytest.mark.parametrize("ends", ["by itself", "by a signal", "by a failure"])
@pytest.mark.parametrize("gone", ["terminal", "pipe"])
def test_a_lost_terminal_changes_no_exit_code(lab: Lab, lab_path: Path, gone: str, ends: str) -> None:
    last = "sys.exit(rank and 3)" if ends == "by a failure" else ""
    program = (
        f"up()\nwhile not os.path.exists('go'):\n    print('line', flush=True); time.sleep(0.05)\n{last}\n"
    )
    reading, writing = pty.openpty() if gone == "terminal" else os.pipe()
    run = FaultyRun(lab, lab_path, program, stdout=writing, stderr=subprocess.STDOUT)
    os.close(writing)
    run.wait_up()
    os.close(reading)
    time.sleep(0.5)
    if ends == "by a signal":
        run.signal(signal.SIGHUP)
    else:
        (run.folder / "go").touch()
    run.wait_end(SOON_S)
    code, kind, origin = {
        "by itself": (0, "done", "launcher"),
        "by a signal": (129, "stopped", "launcher"),
        "by a failure": (3, "rank_failed", "rank"),
    }[ends]
    run.check(code, kind, origin=origin)


# ---- when the head's disk is full


def test_a_full_disk_under_the_run_folder_hides_no_exit_code(lab: Lab, lab_path: Path) -> None:
    lab.up(2)
    small = lab_path / "small"
    small.mkdir()
    for host in (1, 2):
        lab.run(host, ["mount", "-t", "tmpfs", "-o", "size=256k", "none", small], check=True)
    try:
        program = (
            "up()\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\nsys.exit(3 if rank == 3 else 0)\n"
        )
        run = FaultyRun(lab, lab_path, program, "--run-dir", str(small / "out"))
        run.wait_up()
        lab.run(1, ["sh", "-c", f"cat /dev/zero > {small}/fill"])
        (run.folder / "go").touch()
        run.wait_end(SOON_S)
        assert run.head.returncode == 3, run.said()
        assert "rank 3 on node002 failed: exit code 3" in run.said()
        assert "No space left on device" in run.said()
        assert "internal error" not in run.said()
    finally:
        for host in (1, 2):
            lab.run(host, ["umount", "-l", small])
