"""dcu-launch inside an allocation: no hostfile, no SSH, the job's own cards on each node."""

import json
import re

import pytest

from tests.slurm.job_run import JobRun

pytestmark = pytest.mark.slurm

FACTS = """\
import json, os, socket, sys, time
print(json.dumps({"host": socket.gethostname(), "argv": sys.argv[1:], **{name: os.environ.get(name) for name in (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
    "NCCL_IB_HCA", "EMPTY", "SSH_CONNECTION", "SLURM_STEP_ID")}}))
"""
SUM = """\
import os, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("total", int(total), flush=True)
dist.destroy_process_group()
"""


def facts_of(run):
    assert run.done() == "COMPLETED", run.said()
    return [json.loads(log) for log in run.logs()]


def test_ranks_on_all_nodes_with_the_cards_of_the_job_and_values_arrive_whole(slurm, slurm_path):
    words = ("--env", "'NCCL_IB_HCA=shca_0:1,shca_1:1'", "--env", "'EMPTY='")
    run = JobRun(
        slurm, slurm_path, FACTS, *words, arguments="'a \"b\" c,d' ''",
        options=("-N3", "--gres=dcu:2", "--ntasks-per-node=2", "--exclude", slurm.names[0]),
    )  # fmt: skip
    facts = facts_of(run)
    assert [(fact["RANK"], fact["host"], fact["NODE_RANK"], fact["LOCAL_RANK"]) for fact in facts] == [
        (str(rank), slurm.names[rank // 2 + 1], str(rank // 2), str(rank % 2)) for rank in range(6)
    ]
    assert {fact["WORLD_SIZE"] for fact in facts} == {"6"}
    assert {
        (fact["HIP_VISIBLE_DEVICES"], fact["NCCL_IB_HCA"], fact["EMPTY"], fact["SLURM_STEP_ID"])
        for fact in facts
    } == {("0,1", "shca_0:1,shca_1:1", "", "0")}
    assert {tuple(fact["argv"]) for fact in facts} == {('a "b" c,d', "")}
    run.wait_gone((1, 2, 3, 4), 6)


def test_two_jobs_on_one_node_get_different_cards(slurm, slurm_path):
    together = "\n".join(
        [FACTS, "open(f'{sys.argv[1]}-here', 'w').close()", "end = time.monotonic() + 60",
         "while not os.path.exists(f'{sys.argv[2]}-here') and time.monotonic() < end: time.sleep(0.05)", ""]
    )  # fmt: skip
    where = ("-N1", "-w", slurm.names[1], "--gres=dcu:2")
    one = JobRun(slurm, slurm_path, together, arguments="one two", name="one", options=where)
    two = JobRun(slurm, slurm_path, together, arguments="two one", name="two", options=where)
    seen = [
        {(fact["host"], fact["HIP_VISIBLE_DEVICES"], fact["CUDA_VISIBLE_DEVICES"]) for fact in facts_of(run)}
        for run in (one, two)
    ]
    assert seen == [{("node002", "0,1", "0,1")}, {("node002", "2,3", "2,3")}]


def test_variables_that_slurm_sets_are_left_to_each_node(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, FACTS, "--nproc", "1", options=("-N2", "--gres=gpu:2"))
    facts = facts_of(run)
    assert [fact["host"] for fact in facts] == ["node001", "node002"]
    assert {fact["CUDA_VISIBLE_DEVICES"] for fact in facts} == {"0,1"}


def test_a_job_without_cards_trains_on_cpus_with_as_many_ranks_as_tasks(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, SUM, options=("-N2", "--ntasks-per-node=2"))
    assert run.done() == "COMPLETED", run.said()
    assert [log.splitlines()[-1] for log in run.logs()] == ["total 10"] * 4
    refused = JobRun(slurm, slurm_path, SUM, name="refused", options=("-N2",))
    assert refused.done() == "FAILED"
    assert re.search("error: Slurm job \\d+: it has no cards on node001, node002", refused.said())
    assert slurm.job(refused.job)["ExitCode"] == "2:0"


def test_a_hostfile_or_ssh_inside_an_allocation(slurm, slurm_path):
    (slurm_path / "hosts").write_text("node003 slots=1\n")
    named = JobRun(slurm, slurm_path, FACTS, "--hosts", "hosts", "--accept-new-host-keys", name="named")
    assert [fact["host"] for fact in facts_of(named)] == ["node003"]
    ssh = JobRun(slurm, slurm_path, FACTS, "--transport", "ssh", "--accept-new-host-keys", name="ssh")
    facts = facts_of(ssh)
    assert [fact["host"] for fact in facts] == ["node001", "node001", "node002", "node002"]
    assert all(fact["SSH_CONNECTION"] and fact["HIP_VISIBLE_DEVICES"] == "0,1" for fact in facts)


def test_no_srun_in_the_job(slurm, slurm_path):
    tools = slurm_path / "bin"
    tools.mkdir()
    for name in ("scontrol", "env"):
        (tools / name).symlink_to(f"/usr/bin/{name}")
    run = JobRun(slurm, slurm_path, FACTS, before=f"export PATH={tools}")
    assert run.done() == "FAILED"
    assert slurm.job(run.job)["ExitCode"] == "4:0"
    assert "error: srun is not on PATH" in run.said()
    assert "hint: load Slurm's commands (module load slurm), or --transport ssh" in run.said()


LINES = """\
import os
rank = int(os.environ["RANK"])
for number in range(400):
    print(f"{rank} {number} " + chr(97 + rank) * (5000 if number % 2 else 40))
"""


def test_long_lines_of_many_ranks_arrive_whole(slurm, slurm_path):
    run = JobRun(slurm, slurm_path, LINES)
    assert run.done() == "COMPLETED", run.said()[-2000:]
    for rank, log in enumerate(run.logs()):
        wanted = [
            f"{rank} {number} " + chr(97 + rank) * (5000 if number % 2 else 40) for number in range(400)
        ]
        assert log.splitlines() == wanted
        host = slurm.names[rank // 2]
        shown = [
            line.partition("] ")[2] for line in run.said().splitlines() if line.startswith(f"[{host}:{rank}]")
        ]
        assert shown == wanted


@pytest.mark.train
def test_the_demo_trains_over_all_ranks_of_the_job(slurm, slurm_path):
    run = JobRun(
        slurm, slurm_path, "", "--nproc", "1", arguments="train.max_steps=6 train.global_batch_size=2", options=("-N2",)
    )  # fmt: skip
    assert run.done(within_s=180) == "COMPLETED", run.said()
    rows = [json.loads(line) for line in (slurm_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4, 5, 6]
    assert (slurm_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    assert {"exit": 0, "kind": "done"}.items() <= run.summary().items()
