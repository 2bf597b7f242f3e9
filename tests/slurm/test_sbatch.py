"""What scontrol says of a job, read."""

from __future__ import annotations

import pytest

from launcher.slurm.sbatch import JobState, parse_job

RUNNING = (
    "JobId=7 JobName=my job UserId=a(1) JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 "
    "ExitCode=0:0 ReqNodeList=(null) ExcNodeList=(null) NodeList=node[001-002] BatchHost=node001"
)


def test_a_running_job() -> None:
    state = parse_job(RUNNING)
    assert state == JobState("RUNNING", "", 0, 2, "node[001-002]")
    assert not state.is_final


@pytest.mark.parametrize(
    ("state", "exit_code", "outcome"),
    [("COMPLETED", "0:0", 0), ("FAILED", "3:0", 3), ("FAILED", "0:9", 137), ("CANCELLED", "0:15", 143),
     ("CANCELLED", "0:0", 143), ("TIMEOUT", "0:0", 1), ("TIMEOUT", "0:1", 129), ("NODE_FAIL", "0:0", 5),
     ("OUT_OF_MEMORY", "0:125", 253), ("FAILED", "138:0", 138)],
)  # fmt: skip
def test_an_end_that_is_not_well_is_never_0(state: str, exit_code: str, outcome: int) -> None:
    said = parse_job(RUNNING.replace("RUNNING", state).replace("ExitCode=0:0", f"ExitCode={exit_code}"))
    assert said is not None
    assert (said.is_final, said.outcome) == (True, outcome)


def test_what_is_no_job() -> None:
    assert parse_job("slurm_load_jobs error: Invalid job id specified") is None
