"""The command line of the step and the variables it starts with."""

import shutil

import pytest

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.srun import SrunStep, srun_argv, srun_environment

HOSTS = [Host("n1", job="7"), Host("n2", job="7")]


@pytest.mark.parametrize(("told", "cpus"), [("8", "8"), ("16(x2),8", "8"), ("", None)])
def test_one_task_a_node_with_all_cpus_that_each_has(told, cpus):
    words = srun_argv(HOSTS, {"SLURM_JOB_CPUS_PER_NODE": told})
    assert words[:5] == ["srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=n1,n2"]
    assert {"--overlap", "--kill-on-bad-exit=0", "--input=all"} < set(words)
    assert [word for word in words if word.startswith("--cpus-per-task")] == (
        [f"--cpus-per-task={cpus}"] if cpus else []
    )
    assert sum(map(len, words)) < 16384


def test_options_of_the_job_do_not_reach_our_step():
    job = {
        "SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_GPUS_PER_TASK": "1", "SLURM_LABELIO": "1", "SRUN_CPUS_PER_TASK": "2",
        "SLURM_UNBUFFEREDIO": "1", "NCCL_IB_HCA": "a:1,b:1",
    }  # fmt: skip
    assert srun_environment(job) == {"SLURM_JOB_ID": "7", "NCCL_IB_HCA": "a:1,b:1"}


def test_no_srun_on_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("srun") is None
    with pytest.raises(UnreachableError, match="srun is not on PATH") as raised:
        SrunStep(HOSTS)
    assert "--transport ssh" in raised.value.hint
