"""Start of the batch script to the first all-reduce: dcu-launch inside an allocation against ``srun torchrun``.

    python -m bench.slurm [--rounds 7] [--nodes 2] [--ranks 2] [--arms torchrun,static,spawn,unchecked,fork]

Runs in the Slurm lab (root): gloo ranks on CPU. Every arm is a batch job of its own; the arms take turns in every round; a
line a round, then medians and ratios. ``torchrun`` is the usual line of ``srun torchrun`` (c10d rendezvous); ``static`` the
quickest that can be written (each node's rank from SLURM_NODEID, a fixed master).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from bench.launch import BIN, SCRIPT
from tests.lab.fixtures import FOLDER
from tests.lab.lab import Lab
from tests.slurm.slurm_lab import SlurmLab

LIMIT_S = 180.0
BATCH = """\
#!/bin/bash
export GLOO_SOCKET_IFNAME=eth0
{python} -S -c 'import time; print(time.monotonic())' > {out}.begun
{command}
"""


def command(arm: str, ranks: int, port: int, out: Path) -> str:
    """The line of the batch script that starts the ranks."""
    if arm == "torchrun":
        return (
            f"srun {BIN}/torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node={ranks} --rdzv-id=$SLURM_JOB_ID "
            f"--rdzv-backend=c10d --rdzv-endpoint=$(scontrol show hostnames | head -1):{port} {SCRIPT} {out}"
        )
    if arm == "static":
        inner = (
            f"exec {BIN}/torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node={ranks} --node-rank=$SLURM_NODEID "
            f"--master-addr=$MASTER --master-port={port} {SCRIPT} {out}"
        )
        return f"export MASTER=$(scontrol show hostnames | head -1)\nsrun bash -c '{inner}'"
    start = "--start spawn --no-torch-check" if arm == "unchecked" else f"--start {arm}"
    return f"{BIN}/dcu-launch --nproc {ranks} {start} --run-dir {out}.run {SCRIPT} {out}"


def measure(slurm: SlurmLab, folder: Path, arm: str, nodes: int, ranks: int, port: int) -> float:
    """Seconds from the first line of the batch script to the first all-reduce."""
    out = folder / f"out-{port}"
    script = folder / f"job-{port}.sh"
    script.write_text(BATCH.format(python=sys.executable, out=out, command=command(arm, ranks, port, out)))
    job = slurm.submit(script, f"-N{nodes}", "--ntasks-per-node=1", "--cpus-per-task=8", "-o", f"{out}.said")
    state = slurm.wait_state(job, "COMPLETED", "FAILED", within_s=LIMIT_S)
    said = Path(f"{out}.said").read_text()
    if state != "COMPLETED" or not out.exists():
        raise SystemExit(f"{arm}: {state}\n{said}")
    moment, total = out.read_text().split()
    if int(total) != nodes * ranks:
        raise SystemExit(f"{arm}: {total} ranks instead of {nodes * ranks}")
    return float(moment) - float(Path(f"{out}.begun").read_text())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--arms", default="torchrun,static,spawn,unchecked,fork")
    options = parser.parse_args()
    arms = options.arms.split(",")
    lab = Lab(FOLDER / "bench-slurm")
    try:
        slurm = SlurmLab(lab, max(options.nodes, 2))
        folder = lab.shared / "bench"
        folder.mkdir()
        taken: dict[str, list[float]] = {arm: [] for arm in arms}
        port = 21000
        for number in range(options.rounds + 1):
            for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                port += 1
                took = measure(slurm, folder, arm, options.nodes, options.ranks, port)
                if number:  # the first round fills caches
                    taken[arm].append(took)
            if number:
                print("  ".join(f"{arm} {taken[arm][-1]:.2f} s" for arm in arms), flush=True)
        medians = {arm: statistics.median(taken[arm]) for arm in arms}
        for arm in arms:
            ratios = [
                f"{medians[arm] / medians[peer]:.2f} x {peer}"
                for peer in arms
                if peer in ("torchrun", "static")
            ]
            print(f"{arm:10s} median {medians[arm]:.2f} s: {', '.join(ratios)}")
    finally:
        lab.down()


if __name__ == "__main__":
    main()
