"""Command to first all-reduce: dcu-launch against torchrun by hand and DeepSpeed's launcher.

    python -m bench.launch [--rounds 7] [--hosts 2] [--ranks 2] [--cold] [--arms torchrun,deepspeed,spawn,fork,unchecked]

Runs in the lab (root): real sshd hosts in network namespaces, gloo ranks on CPU. The arms take turns in every round; a
line a round, then medians and ratios. ``--cold`` drops the file cache before each start.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "bench" / "allreduce.py"
LIMIT_S = 180
BIN = Path(sys.executable).parent


def find_pdsh() -> None:
    """DeepSpeed's launcher, which the set-up has brought, calls it."""
    if shutil.which("pdsh") is None:
        subprocess.run(["apt-get", "-qq", "install", "-y", "pdsh"], check=True, stdout=subprocess.DEVNULL)


class Arms:
    """The ways to start the same ranks on the same hosts."""

    def __init__(self, lab: Lab, hosts: int, ranks: int) -> None:
        self.lab = lab
        self.names = lab.up(hosts)
        self.ranks = ranks
        self.folder = lab.shared / "bench"
        self.folder.mkdir(exist_ok=True)
        self.hostfile = self.folder / "hosts"
        self.hostfile.write_text("".join(f"{name} slots={ranks}\n" for name in self.names))
        self.port = 21000
        self.argv: dict[str, Callable[[str], list[str]]] = {
            "torchrun": self._torchrun,
            "deepspeed": self._deepspeed,
            "spawn": lambda out: self._ours("spawn", out),
            "unchecked": lambda out: self._ours("spawn", out, "--no-torch-check"),
            "fork": lambda out: self._ours("fork", out),
        }

    def _torchrun(self, out: str) -> list[str]:
        lines = []
        for node, name in enumerate(self.names):
            words = [
                str(BIN / "torchrun"), f"--nnodes={len(self.names)}", f"--nproc-per-node={self.ranks}",
                f"--node-rank={node}", f"--master-addr={self.lab.address(1)}", f"--master-port={self.port}",
                str(SCRIPT), out,
            ]  # fmt: skip
            remote = "GLOO_SOCKET_IFNAME=eth0 " + shlex.join(words)
            lines.append(f"ssh {name} {shlex.quote(remote)} &")
        return ["bash", "-c", "\n".join([*lines, "wait"])]

    def _deepspeed(self, out: str) -> list[str]:
        return [
            str(BIN / "deepspeed"), "--hostfile", str(self.hostfile), f"--master_addr={self.lab.address(1)}",
            f"--master_port={self.port}", str(SCRIPT), out,
        ]  # fmt: skip

    def _ours(self, start: str, out: str, *more: str) -> list[str]:
        return [
            str(BIN / "dcu-launch"), "--hosts", str(self.hostfile), "--start", start, "--run-dir",
            f"{self.folder}/runs/{self.port}", *more, str(SCRIPT), out,
        ]  # fmt: skip

    def measure(self, arm: str, cold: bool) -> tuple[float, float]:
        """Seconds to the first all-reduce and to the end of the command."""
        self.port += 1
        out = self.folder / f"out-{self.port}"
        if cold:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        env = {"GLOO_SOCKET_IFNAME": "eth0", "PDSH_RCMD_TYPE": "ssh", "DS_ACCELERATOR": "cpu"}
        begun = time.monotonic()
        done = self.lab.run(1, self.argv[arm](str(out)), cwd=self.folder, env=env, timeout=LIMIT_S)
        ended = time.monotonic()
        if not out.exists():
            raise SystemExit(f"{arm}: no all-reduce\n{done.stdout}\n{done.stderr}")
        moment, total = out.read_text().split()
        if int(total) != len(self.names) * self.ranks:
            raise SystemExit(f"{arm}: {total} ranks instead of {len(self.names) * self.ranks}")
        for host in range(1, len(self.names) + 1):
            self.lab.wait_gone(host, within_s=30)
        return float(moment) - begun, ended - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--arms", default="torchrun,deepspeed,spawn,fork")
    asked = parser.parse_args()
    names = asked.arms.split(",")
    if "deepspeed" in names:
        find_pdsh()
    lab = Lab(ROOT / ".lab" / "bench")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    try:
        arms = Arms(lab, asked.hosts, asked.ranks)
        for number in range(asked.rounds + 1):
            for name in names:
                pair = arms.measure(name, asked.cold)
                if number:  # the first round fills caches
                    times[name].append(pair)
            if number:
                print("  ".join(f"{name} {times[name][-1][0]:.2f}" for name in names), flush=True)
    finally:
        lab.down()
    medians = {name: statistics.median(first for first, _ in pairs) for name, pairs in times.items()}
    whole = {name: statistics.median(end for _, end in pairs) for name, pairs in times.items()}
    print(json.dumps({"first_allreduce_s": medians, "whole_s": whole}, indent=1))
    for ours in ("spawn", "fork"):
        for peer in ("torchrun", "deepspeed"):
            if ours in medians and peer in medians:
                print(f"{ours} / {peer}: {medians[ours] / medians[peer]:.2f}")


if __name__ == "__main__":
    main()
