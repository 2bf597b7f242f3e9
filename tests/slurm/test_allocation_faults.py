"""Faults of a run inside an allocation: nothing is left on any node, in time, and Slurm's state is never COMPLETED.

With three times the promised seconds, since machines that test are busy.
"""

import re
import signal

import pytest

from tests.launch.faulty_run import record
from tests.slurm.job_run import JobRun
from tests.slurm.slurm_lab import wait_for

pytestmark = pytest.mark.slurm

PATIENCE = 3
PROCESS_S, ASKED_S, LOST_S = 3.0, 2.0, 12.0
#: with a child in a session of its own, which no process group would reach
UP = """\
import os, signal, subprocess, sys, time
rank = int(os.environ["RANK"])
subprocess.Popen(["sleep", "4711"], start_new_session=True)
print("rank", rank, "is up", flush=True)
"""
LONG = UP + "time.sleep(600)\n"
#: what may stay while the script itself goes on after dcu-launch
SCRIPT = ("slurmstepd: [", "/bin/bash /run/slurm", "sleep 4712")


def test_a_rank_that_raises(slurm, slurm_path):
    raises = "while not os.path.exists('now'): time.sleep(0.02)\nif rank == 2: raise ValueError('planted')\n"
    run = JobRun(slurm, slurm_path, UP + raises + "time.sleep(600)\n")
    run.wait_up()
    (slurm_path / "now").touch()
    record("Slurm: a rank raises", run.wait_gone((1, 2), PATIENCE * PROCESS_S), PROCESS_S)
    assert run.done() == "FAILED"
    assert slurm.job(run.job)["ExitCode"] == "1:0"
    assert {"exit": 1, "kind": "rank_failed", "rank": 2, "host": "node002"}.items() <= run.summary().items()
    assert "error: rank 2 on node002 failed: ValueError: planted (exit code 1)" in run.said()


SAVES = """
terms = []
signal.signal(signal.SIGTERM, lambda *_: terms.append(1))
print("rank", rank, "is up", flush=True)
while not terms: time.sleep(0.02)
time.sleep(1.5)
print("saved after", len(terms), flush=True)
sys.exit(143)
"""


def test_scancel_leaves_ranks_their_grace_to_save(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, UP.replace("is up", "starts") + SAVES, "--grace", "6")
    run.wait_up()
    slurm.run(["scancel", str(run.job)])
    record("Slurm: scancel, ranks save", run.wait_gone((1, 2), 6 + PATIENCE * ASKED_S), 6 + ASKED_S)
    assert run.done() == "CANCELLED"
    assert all(re.search("saved after [12]\n", log) for log in run.logs()), run.logs()
    assert {"exit": 143, "kind": "stopped"}.items() <= run.summary().items(), run.said()


@pytest.mark.soak
@pytest.mark.train
def test_scancel_of_a_recipe_saves_in_the_grace(slurm, slurm_path):
    settings = "train.max_steps=5000 train.save_every=5000 train.global_batch_size=2"
    run = JobRun(slurm, slurm_path, "", "--nproc", "1", "--grace", "60", arguments=settings, options=("-N2",))
    metrics = slurm_path / "run" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 3, 90, run.said)
    slurm.run(["scancel", str(run.job)])
    run.wait_gone((1, 2), 60)
    assert run.done() == "CANCELLED"
    assert {"exit": 143, "kind": "stopped"}.items() <= run.summary().items(), run.said()
    (saved,) = (slurm_path / "run" / "checkpoints").glob("step-*")
    assert (saved / "manifest.json").is_file()
    assert not re.search("Traceback|Error", "".join(run.logs()))


def test_scancel_and_ranks_that_do_not_listen(slurm, slurm_path):
    deaf = UP.replace("print(", "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint(") + "time.sleep(600)\n"
    run = JobRun(slurm, slurm_path, deaf, "--grace", "2")
    run.wait_up()
    slurm.run(["scancel", str(run.job)])
    record("Slurm: scancel, ranks are deaf", run.wait_gone((1, 2), 2 + PATIENCE * ASKED_S), 2 + ASKED_S)
    assert run.done() == "CANCELLED"
    assert run.summary()["kind"] == "stopped"


def test_srun_killed(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, LONG, after="code=$?; sleep 4712; exit $code")
    run.wait_up()
    run.kill_srun()
    took = run.wait_gone((1, 2), PATIENCE * PROCESS_S, *SCRIPT)
    record("Slurm: srun killed", took, PROCESS_S)
    assert {"exit": 5, "kind": "node_lost"}.items() <= run.summary().items()
    assert "srun ended (exit code -9)" in run.said()
    run.processes(1, "sleep 4712")[0].kill()
    assert run.done() == "FAILED"


def test_srun_killed_with_nobody_to_end_the_step(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, LONG, "--lost-after", "3")
    run.wait_up()
    head = run.head()
    head.kill(signal.SIGSTOP)
    run.kill_srun()
    took = run.wait_gone((2,), 3 + PATIENCE * ASKED_S)
    record("Slurm: srun killed, the head stands still", took, 3 + ASKED_S)
    head.kill(signal.SIGCONT)
    assert run.done() == "FAILED"
    assert run.summary()["exit"] == 5


def test_the_head_killed(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, LONG)
    run.wait_up()
    run.head().kill(signal.SIGKILL)
    record("Slurm: the head killed", run.wait_gone((1, 2), PATIENCE * PROCESS_S), PROCESS_S)
    assert run.done() == "FAILED"


def test_a_node_whose_slurmd_does_not_answer(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, LONG, before="touch begun; sleep 2")
    wait_for((slurm_path / "begun").exists, 20, run.said)
    run.processes(2, "/usr/sbin/slurmd")[0].kill()
    wait_for(lambda: "error:" in run.said(), 60, run.said)
    run.wait_gone((1,), 10)
    slurm.lab.kill(2)  # so that the node is made anew after the test
    assert run.summary()["exit"] == 4
    said = run.said()
    assert said.count("no agent by srun: ") == 2, said
    assert said.count("failed on node node002: Communication connection failure") == 1, said
    assert re.search("node00.: no agent by srun: the same srun\n", said), said


def test_a_node_killed(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, LONG)
    run.wait_up()
    slurm.lab.kill(2)
    record("Slurm: a node killed", run.wait_gone((1,), LOST_S * 2), LOST_S)
    assert {"exit": 5, "kind": "node_lost", "host": "node002"}.items() <= run.summary().items()
    assert re.search("error: lost node002: no answer for 1\\d s", run.said())
    wait_for(lambda: slurm.job(run.job)["ExitCode"] == "5:0", 10, lambda: str(slurm.job(run.job)))
    assert slurm.job(run.job)["JobState"] in ("COMPLETING", "FAILED", "NODE_FAIL")
