"""The batch script and its signals, with a stand-in for dcu-launch that ends as it is told."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.slurm.script import Job
from tests.slurm.batch import Batch
from tests.slurm.slurm_lab import wait_for

#: ends 138 with a summary after USR1, 143 after TERM, or by itself as END says; SAVES: with a new checkpoint
STAND_IN = r"""#!/bin/bash
run=$2
mkdir -p "$run/checkpoints"
end() {
    printf '{\n  "exit": %d,\n  "origin": "launcher",\n  "kind": "%s"\n}\n' "$2" "$1" >"$run/summary.json"
    exit "$2"
}
trap 'kill %1; [ -n "$SAVES" ] && echo "step-$$" >"$run/checkpoints/latest"; end "${ON_USR1:-interrupted}" "${CODE:-138}"' USR1
trap 'kill %1; end stopped 143' TERM
echo up >>"$run/up"
[ -z "$END" ] || { [ "$END" = 0 ] && end done 0; end rank_failed "$END"; }
sleep 60 &
wait
"""


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Batch]:
    """Makes a batch whose dcu-launch is the stand-in."""

    def make_batch(refuses: bool = False, is_late: bool = False, **fields: Any) -> Batch:
        launcher = tmp_path / "dcu-launch"
        launcher.write_text(STAND_IN)
        launcher.chmod(0o755)
        job = Job(
            "job",
            1,
            str(launcher),
            (),
            str(tmp_path),
            str(tmp_path / "run"),
            str(tmp_path / "run.slurm"),
            **fields,
        )
        return Batch(tmp_path, job, refuses=refuses, is_late=is_late)

    return make_batch


def interrupt(batch: Batch, number: int = signal.SIGUSR1, **variables: str) -> tuple[int, str]:
    """One start that is signalled once dcu-launch is up."""
    up = Path(batch.job.run_dir) / "up"
    before = len(up.read_text().splitlines()) if up.exists() else 0
    script = batch.start(**variables)
    wait_for(lambda: up.exists() and len(up.read_text().splitlines()) > before, 20, lambda: "not up", 0.01)
    os.kill(script.pid, number)
    return batch.end(script)


def test_usr1_saves_and_asks_for_another_start_once(make: Any) -> None:
    batch = make()
    code, said = interrupt(batch, SAVES="x")
    assert (code, batch.asked()) == (138, ["requeue 7"])
    assert "asked Slurm to start this job again" in said
    assert batch.run(END="0")[0] == 0
    assert batch.asked() == ["requeue 7"]


def test_slurm_ends_the_start_before_it_has_answered(make: Any) -> None:
    """Its TERM for the whole start may come sooner than the answer to the requeue that it obeys."""
    batch = make(is_late=True)
    code, said = interrupt(batch, SAVES="x")
    assert (code, batch.asked()) == (138, ["requeue 7"])
    assert "asked Slurm to start this job again" in said
    assert "does not start this job again" not in said


@pytest.mark.parametrize("code", [0, 3, 143])
def test_an_end_without_a_signal_is_the_jobs_end(make: Any, code: int) -> None:
    batch = make()
    assert batch.run(END=str(code))[0] == code
    assert batch.asked() == []


def test_term_is_handed_on_and_nothing_starts_again(make: Any) -> None:
    batch = make()
    assert interrupt(batch, signal.SIGTERM, SAVES="x")[0] == 143
    assert batch.asked() == []


@pytest.mark.parametrize(
    ("kind", "code"), [("done", 0), ("rank_failed", 1), ("node_lost", 5), ("stopped", 143)]
)
def test_what_ended_otherwise_after_usr1_is_not_started_again(make: Any, kind: str, code: int) -> None:
    batch = make()
    assert interrupt(batch, ON_USR1=kind, CODE=str(code))[0] == code
    assert batch.asked() == []


def test_starts_that_bring_nothing_end_it_and_say_why(make: Any) -> None:
    batch = make(restarts=2)
    codes = [interrupt(batch) for _ in range(3)]
    assert [code for code, _ in codes] == [138] * 3
    assert batch.asked() == ["requeue 7"] * 2
    assert "not started again: 3 starts in a row wrote no new checkpoint" in codes[2][1]


def test_one_that_brings_something_begins_the_count_anew(make: Any) -> None:
    batch = make(restarts=1)
    for saves in ("", "x", ""):
        interrupt(batch, SAVES=saves)
    assert batch.asked() == ["requeue 7"] * 3
    interrupt(batch)
    assert len(batch.asked()) == 3


def test_a_job_submitted_anew_is_not_charged_for_the_old_ones_starts(make: Any) -> None:
    batch = make(restarts=1)
    interrupt(batch)
    interrupt(batch)
    batch.starts = 0
    interrupt(batch)
    assert len(batch.asked()) == 2


def test_without_restarts_it_saves_and_ends(make: Any) -> None:
    batch = make(restarts=0)
    assert interrupt(batch, SAVES="x")[0] == 138
    assert batch.asked() == []


def test_a_refusal_of_slurms_is_told(make: Any) -> None:
    code, said = interrupt(make(refuses=True), SAVES="x")
    assert (code, "Slurm does not start this job again" in said) == (138, True)


def test_a_task_of_an_array_asks_for_itself_alone(make: Any, tmp_path: Path) -> None:
    batch = make(options=(("array", "3,4"),))
    script = batch.start(SLURM_ARRAY_JOB_ID="5", SLURM_ARRAY_TASK_ID="4", SAVES="x")
    wait_for(lambda: (tmp_path / "run-4" / "up").exists(), 20, lambda: "not up")
    os.kill(script.pid, signal.SIGUSR1)
    assert batch.end(script)[0] == 138
    assert batch.asked() == ["requeue 5_4"]


def test_a_scripts_own_checkpoints_show_that_it_gets_on(make: Any, tmp_path: Path) -> None:
    own = tmp_path / "my checkpoints"
    batch = make(restarts=1, progress=str(own))
    interrupt(batch)
    own.mkdir()
    (own / "last.pt").write_text("1")
    os.utime(own / "last.pt", (1, 1))
    script = batch.start()
    wait_for(lambda: (tmp_path / "run" / "up").read_text().count("up") == 2, 20, lambda: "not up")
    (own / "last.pt").write_text("2")  # the same name, written again
    os.kill(script.pid, signal.SIGUSR1)
    batch.end(script)
    interrupt(batch)
    assert len(batch.asked()) == 3
    interrupt(batch)
    assert len(batch.asked()) == 3


def test_usr1_at_any_moment_of_the_start_is_not_lost(make: Any) -> None:
    """Before the trap is set the shell dies of it, as Slurm never sends it so early; afterwards nothing is lost."""
    batch = make()
    chance = random.Random(5)
    ends = []
    for _ in range(12):
        script = batch.start(SAVES="x")
        time.sleep(chance.uniform(0, 0.04))
        os.kill(script.pid, signal.SIGUSR1)
        ends.append(batch.end(script, 20)[0])
    assert set(ends) <= {138, -signal.SIGUSR1}
    assert len(batch.asked()) == ends.count(138) > 0
