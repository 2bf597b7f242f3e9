"""The Slurm lab keeps its promises."""

import pytest

pytestmark = pytest.mark.slurm


def write_script(folder, *lines):
    path = folder / "job.sh"
    path.write_text("\n".join(["#!/bin/bash", *lines, ""]))
    return path


def test_jobs_run_on_several_nodes_and_share_a_node_by_cards(slurm, slurm_path):
    show = (
        'srun --ntasks-per-node=1 hostname | sort >"$1"; scontrol show job -d "$SLURM_JOB_ID" >>"$1"; sleep 3'
    )
    script = write_script(slurm_path, show)
    first = slurm.submit(script, "-N2", "--gres=dcu:2", "-o", "/dev/null")
    second = int(
        slurm.run(["sbatch", "--parsable", "-N1", "-w", slurm.names[0], "--gres=dcu:2", "-o", "/dev/null",
                   str(script), str(slurm_path / "second")])
    )  # fmt: skip
    slurm.wait_state(first, "RUNNING", "COMPLETED")
    cards = [slurm.run(["scontrol", "show", "job", "-d", str(number)]) for number in (first, second)]
    assert "GRES=dcu:2(IDX:0-1)" in cards[0]
    assert "GRES=dcu:2(IDX:2-3)" in cards[1]
    assert slurm.wait_state(second, "COMPLETED") == "COMPLETED"
    assert (slurm_path / "second").read_text().split("\n")[0] == slurm.names[0]
