"""Slurm on the hosts of a lab: slurmctld on host 1, slurmd and munged on each, four made-up cards (GRES ``dcu``) and two of a
kind for which Slurm has a plugin that sets variables (``gpu``) a node.

Debian's packages, started by hand in each host's own /run; nothing of it outlives the lab. The cards are empty files, so
that Slurm hands out their numbers (IDX) as it does on a cluster whose gres.conf has ``File=``.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.lab.lab import Lab, Words

CARDS, GPUS = 4, 2
CONFIG = """\
ClusterName=dculab
SlurmctldHost={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=/run/slurm/ctld
SlurmdSpoolDir=/run/slurm/d
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
SlurmctldTimeout=20
InactiveLimit=0
KillWait=30
MinJobAge=600
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=1000
JobRequeue=1
SlurmdParameters=config_overrides
GresTypes=dcu,gpu
NodeName={nodes} CPUs=32 Sockets=1 CoresPerSocket=32 ThreadsPerCore=1 RealMemory=60000 Gres=dcu:{cards},gpu:{gpus} State=UNKNOWN
PartitionName=dcu Nodes={nodes} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
START = """\
set -e
mkdir -p /run/munge /run/slurm/ctld /run/slurm/d
cp {folder}/munge.key /run/munge.key
chown munge /run/munge /run/munge.key
chmod 400 /run/munge.key
runuser -u munge -- /usr/sbin/munged --key-file=/run/munge.key --pid-file=/run/munge/munged.pid \
    --seed-file=/run/munge/seed --log-file=/run/munge/munged.log --num-threads=2
mountpoint -q /etc/slurm || mount --bind {folder} /etc/slurm
if [ {host} = 1 ]; then /usr/sbin/slurmctld </dev/null; fi
/usr/sbin/slurmd -N "$(hostname)" </dev/null
"""


class SlurmLab:
    """A lab whose hosts are the nodes of a Slurm cluster.

    Args:
        lab: hosts of its own; ended with it.
        num_nodes: hosts 1 to ``num_nodes`` become nodes.
    """

    def __init__(self, lab: Lab, num_nodes: int = 4) -> None:
        self.lab = lab
        self.num_nodes = num_nodes
        self.folder = lab.disk.folder / "etc" / "slurm"
        self.names = lab.up(num_nodes)
        self._write_files()
        Path("/etc/slurm").mkdir(exist_ok=True)
        for host in range(1, num_nodes + 1):
            self._start(host)
        self.wait_idle()
        for host in range(1, num_nodes + 1):
            lab.rebase(host)

    def _write_files(self) -> None:
        self.folder.mkdir()
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        cards = self.folder / "cards"
        cards.mkdir()
        for number in range(CARDS):
            (cards / f"dcu{number}").touch()
        for number in range(GPUS):
            (cards / f"gpu{number}").touch()
        nodes = f"node[001-{self.num_nodes:03d}]"
        (self.folder / "slurm.conf").write_text(
            CONFIG.format(
                controller=self.lab.name(1), folder=self.folder, nodes=nodes, cards=CARDS, gpus=GPUS
            )
        )
        lines = [
            f"Name={kind} File={cards}/{kind}[0-{count - 1}]"
            for kind, count in (("dcu", CARDS), ("gpu", GPUS))
        ]
        (self.folder / "gres.conf").write_text("".join(f"NodeName={nodes} {line}\n" for line in lines))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")

    def _start(self, host: int) -> None:
        script = START.format(folder=self.folder, host=host)
        # not into pipes: the daemons would hold them open
        done = self.lab.run(
            host, ["bash", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{self.lab.name(host)}: Slurm does not start: {done.returncode}"

    # -- commands

    def run(self, argv: Words, *, timeout: float = 60.0, **run: object) -> str:
        """Run a Slurm command on host 1 in ``shared``; its output. Fails with it when the command does."""
        words = {"cwd": self.lab.shared, **run}
        return str(self.lab.run(1, argv, timeout=timeout, check=True, **words).stdout)  # type: ignore[arg-type]

    def submit(self, script: Path, *words: str, cwd: Path | None = None) -> int:
        """Submit a batch script; the job's number."""
        return int(
            self.run(["sbatch", "--parsable", *words, str(script)], cwd=cwd or script.parent).split(";")[0]
        )

    def job(self, number: int | str) -> dict[str, str]:
        """What ``scontrol show job`` says: its ``KEY=value`` words."""
        text = self.run(["scontrol", "show", "job", "-d", str(number)])
        return dict(re.findall(r"(\w+(?::\w+)?)=(\S*)", text))

    def wait_state(self, number: int | str, *states: str, within_s: float = 60.0) -> str:
        """Wait for one of these states; the one that came."""
        seen = ""

        def arrived() -> bool:
            nonlocal seen
            seen = self.job(number)["JobState"]
            return seen in states

        wait_for(arrived, within_s, lambda: f"job {number} is {seen}, not {' or '.join(states)}", 0.2)
        return seen

    def wait_idle(self, within_s: float = 60.0) -> None:
        """Wait until every node could take a job."""
        state = ""

        def idle() -> bool:
            nonlocal state
            state = self.run(["sinfo", "-h", "-N", "-o", "%T"])
            return state.split() == ["idle"] * self.num_nodes

        wait_for(idle, within_s, lambda: f"nodes are {state.split()}", 0.1)

    def restore(self) -> None:
        """After a test: no jobs, all nodes up and idle."""
        self.run(["scancel", "--user=root"])
        killed = [host for host in range(1, self.num_nodes + 1) if not self.lab.processes(host)]
        if killed:
            self.lab.boot(*killed)
            for host in killed:
                self._start(host)
                self.lab.rebase(host)
            names = ",".join(self.lab.name(host) for host in killed)
            # also a node of which the controller has not noticed yet that it was away
            self.run(["scontrol", "update", f"nodename={names}", "state=down", "reason=killed"])
            self.run(["scontrol", "update", f"nodename={names}", "state=resume"])
        self.wait_idle()
        self.lab.restore()


def wait_for(
    condition: Callable[[], bool], within_s: float, say: Callable[[], str], every_s: float = 0.05
) -> None:
    """Wait for a condition; fail with what ``say`` says."""
    end = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"after {within_s:.0f} s: {say()}")
        time.sleep(every_s)
