"""A batch script run as slurmd would run it, but with no Slurm: scontrol is one that writes down what it is asked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from launcher.slurm.script import Job, write_script

SCONTROL = """\
#!/bin/sh
if [ "$1" = show ]; then
    echo "   OverSubscribe=OK"
else
    echo "$*" >>"{log}"
    # as Slurm does: TERM for all processes of the start, maybe before the answer is here
    {then}
    exit {code}
fi
"""


class Batch:
    """One job and its starts.

    Args:
        folder: holds all files of it.
        refuses: whether scontrol refuses what it is asked.
        is_late: whether Slurm ends the start before scontrol has its answer.
    """

    def __init__(self, folder: Path, job: Job, *, refuses: bool = False, is_late: bool = False) -> None:
        self.folder, self.job = folder, job
        self.log = folder / "asked"
        Path(job.files).mkdir(exist_ok=True)
        (folder / "bin").mkdir()
        scontrol = folder / "bin" / "scontrol"
        scontrol.write_text(
            SCONTROL.format(log=self.log, code=int(refuses), then="kill -TERM 0" if is_late else ":")
        )
        scontrol.chmod(0o755)
        (folder / "job.sh").write_text(write_script(job), errors="surrogateescape")
        self.starts = 0

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start the script, as Slurm does the first time and after each requeue; default signals."""
        node = socket.gethostname()
        env = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": node, "SLURMD_NODENAME": node,
            **({"SLURM_RESTART_COUNT": str(self.starts)} if self.starts else {}),
            **variables,
        }  # fmt: skip
        self.starts += 1
        return subprocess.Popen(
            ["bash", str(self.folder / "job.sh")], cwd=self.folder, env=env, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def run(self, **variables: str) -> tuple[int, str]:
        """One start to its end: exit code and output."""
        return self.end(self.start(**variables))

    def end(self, script: subprocess.Popen[str], limit_s: float = 120.0) -> tuple[int, str]:
        """Wait for the end of a start: exit code and output."""
        try:
            said = script.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            raise AssertionError(
                f"not ended after {limit_s:.0f} s: {script.communicate()[0][-3000:]}"
            ) from None
        return script.returncode, said

    def asked(self) -> list[str]:
        """What scontrol was asked to do."""
        return self.log.read_text().splitlines() if self.log.exists() else []
