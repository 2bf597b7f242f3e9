"""What scontrol says of a job, read."""

from __future__ import annotations

import pytest

from launcher.slurm.sbatch import JobState, explain_wait, parse_job

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


PENDING = RUNNING.replace("RUNNING", "PENDING").replace("NodeList=node[001-002]", "NodeList=(null)")


@pytest.mark.parametrize(
    ("reason", "meaning", "cure"),
    [
        ("PartitionConfig", "partition dcu has fewer nodes, or gives a job less time", "fewer --nodes"),
        ("PartitionNodeLimit", "partition dcu gives a job fewer nodes", "fewer --nodes"),
        ("PartitionTimeLimit", "partition dcu gives a job less time", "a shorter --time"),
        ("PartitionDown", "partition dcu starts no jobs now", "sinfo -s"),
        ("PartitionInactive", "partition dcu starts no jobs now", "sinfo -s"),
        ("ReqNodeNotAvail,_UnavailableNodes:node002", "nodes that it needs are down, drained or reserved", "sinfo -R"),
        ("Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
         "nodes that it needs are down, drained or reserved", "sinfo -R"),
        ("QOSMaxNodePerUserLimit", "a limit of the account or QOS", "sacctmgr"),
        ("AssocGrpNodeLimit", "a limit of the account or QOS", "sacctmgr"),
        ("AccountNotAllowed", "a limit of the account or QOS", "sacctmgr"),
        ("BadConstraints", "no node is as it asks", "sinfo -N"),
        ("DependencyNeverSatisfied", "the job that it waits for did not end as asked", "--dependency"),
    ],
)  # fmt: skip
def test_a_job_that_waiting_alone_does_not_start_has_a_cure(reason: str, meaning: str, cure: str) -> None:
    job = parse_job(PENDING.replace("Reason=None", f"Partition=dcu Reason={reason}"))
    assert job is not None
    told = explain_wait("7", job)
    assert told is not None
    assert told[0] == f"job 7 waits ({reason}): {meaning}"
    assert cure in told[1]
    assert told[1].endswith("; scancel 7 takes the job back")


@pytest.mark.parametrize(
    "reason", ["None", "Resources", "Priority", "BeginTime", "Dependency", "JobHeldUser"]
)
def test_a_job_that_has_to_wait_for_its_turn_is_not_warned_of(reason: str) -> None:
    job = parse_job(PENDING.replace("Reason=None", f"Reason={reason}"))
    assert job is not None
    assert explain_wait("7", job) is None
    running = parse_job(RUNNING.replace("Reason=None", "Reason=PartitionConfig"))
    assert running is not None
    assert explain_wait("7", running) is None
