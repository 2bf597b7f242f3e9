"""Reaching many hosts: all agents up and answering, against pdsh and clush that run ``python3 -c pass`` on the same hosts.

    python -m bench.fanout [--hosts 16,64,128] [--rounds 5] [--arms ours,pdsh,pdsh-curve,clush]

Runs in the lab (root): real sshd hosts in network namespaces, the head on the first of them. The arms take turns in every
round; a line a round, then medians and ratios. Our time ends when the last node's report has arrived at the head; a peer's
when its command ends. ``pdsh-curve`` gives OpenSSH the key exchange ``curve25519-sha256``: its default is most of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("DCU_LAB_FOLDER", ROOT / ".lab" / "bench"))
LIMIT_S = 180
FANOUT = 64
ARMS = ("ours", "pdsh", "pdsh-curve", "clush")
CURVE = "-o KexAlgorithms=curve25519-sha256"


@dataclass(frozen=True, slots=True)
class Sample:
    """One arm once: seconds until all hosts had answered, CPU seconds of the head in all, and of us more."""

    answered_s: float
    cpu_s: float
    peak_mb: float = 0.0
    threads: int = 0
    whole_s: float = 0.0


def report_agents(hostfile: str) -> None:
    """Bring all agents up, wait for their reports, end them; says when and at what cost. Runs on the head."""
    from launcher.commands.execute import open_nodes, read_reports
    from launcher.commands.request import read_request
    from launcher.commands.run import run
    from launcher.remote.session import Inbox

    words = ["--hosts", hostfile, "--fanout", str(FANOUT), "--start", "spawn", __file__]
    with run.make_context("bench", words) as context:
        request = read_request(context.params)
    inbox = Inbox()
    with open_nodes(request, inbox, None) as nodes:
        reports = read_reports(nodes, request)
        answered = time.monotonic()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        threads = threading.active_count()
    if len({report.hostname for report in reports}) != len(request.hosts):
        raise SystemExit("not every host answered")
    numbers: dict[str, Any] = {"answered": answered, "ended": time.monotonic()}
    numbers |= {"peak_mb": usage.ru_maxrss / 1024, "threads": threads}
    print(json.dumps(numbers))


class Arms:
    """The ways to reach the same hosts."""

    def __init__(self, lab: Lab, count: int) -> None:
        self.lab = lab
        self.names = lab.up(count)[:count]
        self.hostfile = lab.shared / f"hosts-{count}"
        self.hostfile.write_text("".join(f"{name} slots=1\n" for name in self.names))

    def command(self, arm: str) -> list[str]:
        """The words of an arm."""
        if arm.startswith("ours"):
            return [sys.executable, "-m", "bench.fanout", "--report-agents", str(self.hostfile)]
        program = ["python3", "-c", "pass"]
        if arm == "clush":
            return ["clush", "-f", str(FANOUT), "-w", ",".join(self.names), *program]
        return ["pdsh", "-R", "ssh", "-f", str(FANOUT), "-w", ",".join(self.names), *program]

    def measure(self, arm: str) -> Sample:
        """Run an arm once."""
        env = {"PYTHONPATH": str(ROOT)}
        if arm == "pdsh-curve":
            env["PDSH_SSH_ARGS_APPEND"] = CURVE
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        begun = time.monotonic()
        done = self.lab.run(1, self.command(arm), env=env, timeout=LIMIT_S, cwd=ROOT)
        whole = time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if done.returncode or (done.stderr and not arm.startswith("ours")):  # ours says who is late
            raise SystemExit(f"{arm}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        if not arm.startswith("ours"):
            return Sample(whole, cpu, whole_s=whole)
        told = json.loads(done.stdout)
        return Sample(told["answered"] - begun, cpu, told["peak_mb"], told["threads"], whole)


def compare(lab: Lab, count: int, rounds: int, names: list[str]) -> dict[str, dict[str, float]]:
    """Measure the arms in turn and print; returns the medians."""
    arms = Arms(lab, count)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            sample = arms.measure(name)
            if number:  # the first round fills caches
                samples[name].append(sample)
        if number:
            print("  ".join(f"{name} {samples[name][-1].answered_s:.2f}" for name in names), flush=True)
    medians = {
        name: {
            field: round(statistics.median(getattr(sample, field) for sample in taken), 3)
            for field in Sample.__slots__
        }
        for name, taken in samples.items()
    }
    print(json.dumps({"hosts": count, **medians}, indent=1))
    for name in names:
        if name != "ours" and "ours" in medians:
            ratio = medians["ours"]["answered_s"] / medians[name]["answered_s"]
            print(f"{count} hosts: ours / {name}: {ratio:.2f}", flush=True)
    return medians


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", default="16,64,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--report-agents", metavar="HOSTFILE", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.report_agents:
        report_agents(asked.report_agents)
        return
    missing = [name for name in ("pdsh", "clush") if shutil.which(name) is None]
    names = [name for name in asked.arms.split(",") if name.partition("-")[0] not in missing]
    if missing:
        print(f"left out, not installed (apt: pdsh, clustershell): {', '.join(missing)}")
    lab = Lab(FOLDER)
    try:
        for count in map(int, asked.hosts.split(",")):
            compare(lab, count, asked.rounds, names)
    finally:
        lab.down()


if __name__ == "__main__":
    main()
