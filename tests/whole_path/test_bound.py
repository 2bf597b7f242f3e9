"""--bind numa in real ranks: their affinity and the plan, on a host that shows two NUMA nodes of one CPU each."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.whole_path.facts import facts_here, facts_in_lab


def test_ranks_of_this_machine_stay_on_its_nodes(tmp_path: Path):
    facts = facts_here(tmp_path, "--nproc", "2", "--bind", "numa", "facts.py")
    allowed = os.sched_getaffinity(0)
    assert all(set(told["cpus"]) <= allowed for told in facts)
    plan = json.loads((tmp_path / "run" / "plan.json").read_text())["nodes"][0]
    assert plan["binding"].startswith("local ranks 0-1 on NUMA nodes 0 ")


def show_two_nodes(lab, host: int) -> None:
    """Cover the host's list of NUMA nodes by one of our own: node 0 with CPU 0, node 1 with CPU 1."""
    lines = ["mkdir -p /run/numa/node0 /run/numa/node1", "echo 0 > /run/numa/node0/cpulist"]
    lines += ["echo 1 > /run/numa/node1/cpulist", "mount --bind /run/numa /sys/devices/system/node"]
    lab.run(host, ["sh", "-ec", "\n".join(lines)], check=True)


@pytest.mark.lab
@pytest.mark.skipif(os.cpu_count() == 1, reason="one CPU cannot be shared out")
@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_ranks_stay_on_the_nodes_that_their_host_shows(lab, lab_path: Path, start):
    names = lab.up(2)
    show_two_nodes(lab, 2)
    try:
        hosts = f"{names[0]} slots=1\n{names[1]} slots=2\n"
        facts = facts_in_lab(lab, lab_path, hosts, "--bind", "numa", "--start", start, "facts.py")
    finally:
        lab.run(2, ["umount", "/sys/devices/system/node"], check=True)
    assert [told["cpus"] for told in facts[1:]] == [[0], [1]]
    assert [told["env"]["OMP_NUM_THREADS"] for told in facts[1:]] == ["1", "1"]
    plan = json.loads((lab_path / "run" / "plan.json").read_text())["nodes"][1]
    assert plan["binding"] == "local ranks 0-1 on NUMA nodes 0 1"
    assert [rank["binding"]["cpus"] for rank in plan["ranks"]] == ["0", "1"]
