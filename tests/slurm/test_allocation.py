"""dcu-launch inside an allocation: no hostfile, no SSH, the job's own cards, and an end that leaves nothing."""

import json
import re
import time

import pytest

from tests.lab.lab import BIN
from tests.slurm.slurm_lab import wait_for

pytestmark = pytest.mark.slurm

FACTS = """\
import json, os, socket, sys
print(json.dumps({"host": socket.gethostname(), "argv": sys.argv[1:], **{name: os.environ.get(name) for name in (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "HIP_VISIBLE_DEVICES", "NCCL_IB_HCA", "EMPTY")}}))
"""
#: a long run with a child in another session, which no process group would reach
LONG = """\
import os, subprocess, sys, time
subprocess.Popen(["sleep", "4711"], start_new_session=True)
print("rank", os.environ["RANK"], "is up", flush=True)
time.sleep(1 if os.environ["RANK"] == os.environ.get("RAISES") else 600)
raise ValueError("planted")
"""


def start(slurm, folder, program, *words, options=("-N2", "--gres=dcu:2"), env=""):
    """Submit a batch script that runs dcu-launch on a program; the job's number."""
    (folder / "program.py").write_text(program)
    (folder / "job.sh").write_text(
        f"#!/bin/bash\n{env}\nexec {BIN}/dcu-launch --run-dir run {' '.join(words)}\n"
    )
    return slurm.submit(folder / "job.sh", "-o", "out-%j.txt", *options)


def facts_of(folder):
    logs = sorted(folder.glob("run/logs/*/rank-*.log"), key=lambda path: path.name)
    return [json.loads(log.read_text()) for log in logs]


def wait_running(slurm, folder, job, ranks=4):
    out = folder / f"out-{job}.txt"
    wait_for(
        lambda: out.exists() and len(re.findall("rank . is up", out.read_text())) == ranks,
        60,
        lambda: out.read_text() if out.exists() else "no output",
    )


def check_gone(slurm, hosts, within_s):
    begun = time.monotonic()
    for host in hosts:
        for token in ("program.py", "sleep 4711", "dcu-", "launcher"):
            slurm.lab.wait_gone(host, token, within_s=max(0.1, within_s - (time.monotonic() - begun)))


def test_ranks_run_on_all_nodes_with_the_cards_of_the_job_and_values_arrive_whole(slurm, slurm_path):
    words = [
        "--env",
        "'NCCL_IB_HCA=shca_0:1,shca_1:1'",
        "--env",
        "'EMPTY='",
        "program.py",
        "'a \"b\" c,d'",
        "''",
    ]
    job = start(slurm, slurm_path, FACTS, *words, options=("-N3", "--gres=dcu:2", "--ntasks-per-node=2"))
    state = slurm.wait_state(job, "COMPLETED", "FAILED")
    assert state == "COMPLETED", (slurm_path / f"out-{job}.txt").read_text()
    facts = facts_of(slurm_path)
    assert [(fact["RANK"], fact["host"], fact["NODE_RANK"], fact["LOCAL_RANK"]) for fact in facts] == [
        (str(rank), slurm.names[rank // 2], str(rank // 2), str(rank % 2)) for rank in range(6)
    ]
    assert {fact["WORLD_SIZE"] for fact in facts} == {"6"}
    assert {(fact["HIP_VISIBLE_DEVICES"], fact["NCCL_IB_HCA"], fact["EMPTY"]) for fact in facts} == {
        ("0,1", "shca_0:1,shca_1:1", "")
    }
    assert {tuple(fact["argv"]) for fact in facts} == {('a "b" c,d', "")}
    check_gone(slurm, (1, 2, 3), 6)
