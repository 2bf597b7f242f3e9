"""A cluster as sinfo tells it: which partition, which nodes, how cards are called; and ``init`` on a real one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.hosts.hostfile import read_hostfile
from launcher.slurm.cluster import count_cards, parse_cluster
from tests.slurm.slurm_lab import CARDS

MIXED = """\
login1|cpu*|(null)|16|1-00:00:00
node01|cpu*|(null)|64|1-00:00:00
node01|dcu|dcu:k100:4(S:0-3)|64|3-00:00:00
node02|dcu|dcu:k100:4(S:0-3)|48+|3-00:00:00
node03|old|gpu:2|32|infinite
down|old|gpu:0|32|infinite
"""


@pytest.mark.parametrize(
    ("gres", "found"),
    [
        ("dcu:4", ("dcu", 4)),
        ("dcu:4(S:0-1),gpu:a100:2", ("dcu", 4)),
        ("gpu:a100:4(S:0),gpu:a30:2(S:1)", ("gpu", 6)),
        ("hcu:k100_ai:8", ("hcu", 8)),
        ("shard:4", ("", 0)),
        ("(null)", ("", 0)),
    ],
)
def test_cards_of_a_node(gres, found):
    assert count_cards(gres) == found


def test_the_default_partition_without_cards_gives_way_to_one_that_has_most():
    cluster = parse_cluster(MIXED)
    assert cluster is not None
    assert (cluster.partition, cluster.is_default, cluster.gres) == ("dcu", False, "dcu")
    assert cluster.nodes == {"node01": (4, 64), "node02": (4, 48)}
    assert (cluster.cards, cluster.cpus, cluster.time) == (4, 48, "12:00:00")


def test_a_default_partition_that_has_cards_stays_and_a_short_limit_counts():
    cluster = parse_cluster(MIXED.replace("node03|old|gpu:2|32|infinite", "node03|old*|gpu:2|32|30:00"))
    assert cluster is not None
    assert (cluster.partition, cluster.is_default, cluster.gres, cluster.time) == (
        "old",
        True,
        "gpu",
        "30:00",
    )
    assert cluster.nodes == {"node03": (2, 32)}


@pytest.mark.parametrize("text", ["", "slurm_load_partitions: Unable to contact\n"])
def test_what_is_no_answer_is_no_cluster(text):
    assert parse_cluster(text) is None


@pytest.mark.slurm
def test_init_on_a_real_cluster_writes_what_sbatch_and_dcu_launch_take(slurm, slurm_path: Path) -> None:
    from tests.slurm.job_run import BIN

    words = [f"{BIN}/dcu-launch", "init", "--model", "demo", "--data", "demo"]
    said = slurm.run(words, cwd=slurm_path)
    assert f"submit --cards {CARDS} --gres dcu dcu-launch.yaml train.max_steps=20" in said
    hosts = read_hostfile(slurm_path / "hosts.txt")
    assert [(host.name, host.slots) for host in hosts] == [(name, CARDS) for name in slurm.names]
    script = slurm_path / "train.sbatch"
    for check in (["bash", "-n"], ["shellcheck", "--severity=style"]):
        assert subprocess.run([*check, str(script)], check=True).returncode == 0
    assert f"--gres=dcu:{CARDS}\n" in script.read_text()
    slurm.run(["sbatch", "--test-only", str(script)], cwd=slurm_path)
    slurm.run([f"{BIN}/dcu-launch", "--nproc", "1", "--dry-run"], cwd=slurm_path)
    verb, *rest = said.split("try it: dcu-launch ")[1].split()
    told = slurm.run([f"{BIN}/dcu-launch", verb, "--dry-run", *rest], cwd=slurm_path)
    assert told.startswith("#!/bin/bash\n")
