"""What Slurm is asked by its own commands: to take a job, and how a job is. Runs on the head."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launcher.base.errors import LauncherError, UnreachableError, UsageError

ANSWER_LIMIT_S = 60.0
#: the folder of a job's files is the run folder's with this behind it
FILES_SUFFIX = ".slurm"
#: in the folder of a job's files: its number
JOB_FILE = "job.id"
#: after these nothing more comes; a job that is asked for another start is PENDING or REQUEUED before it is any of them
FINAL = frozenset({
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "PREEMPTED",
    "REVOKED",
})  # fmt: skip
#: reasons that Slurm has at once for a job that may wait for ever: pattern, meaning, cure
_STUCK = (
    ("PartitionNodeLimit", "partition {partition} gives a job fewer nodes",
     "fewer --nodes, or another --partition; scontrol show partition {partition}"),
    ("PartitionTimeLimit", "partition {partition} gives a job less time",
     "a shorter --time, or another --partition; scontrol show partition {partition}"),
    ("PartitionConfig", "partition {partition} has fewer nodes, or gives a job less time",
     "fewer --nodes, a shorter --time, or another --partition; scontrol show partition {partition}"),
    ("Partition(Down|Inactive)", "partition {partition} starts no jobs now", "another --partition; sinfo -s"),
    ("ReqNodeNotAvail|Nodes_required_for_job", "nodes that it needs are down, drained or reserved",
     "sinfo -R says why; fewer --nodes, or others"),
    ("(Assoc|QOS)(Grp|Max)|QOSNotAllowed|Invalid(Account|QOS)|AccountNotAllowed", "a limit of the account or QOS",
     "sacctmgr show associations user=$USER; sacctmgr show qos"),
    ("BadConstraints", "no node is as it asks", "sinfo -N -o '%N %c %m %G %f'"),
    ("DependencyNeverSatisfied", "the job that it waits for did not end as asked", "another --dependency"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobState:
    """A job at one moment, as ``scontrol show job`` tells it.

    Attributes:
        state: PENDING, RUNNING, COMPLETED, FAILED, CANCELLED, TIMEOUT ...
        reason: why it waits or was ended; empty for none.
        exit_code: of the batch script, or 128 + the number of the signal that ended it.
        restarts: starts after the first one.
        nodes: where it runs, as Slurm folds names.
        partition: where it waits or runs; several names with commas while Slurm has not chosen.
    """

    state: str
    reason: str
    exit_code: int
    restarts: int
    nodes: str
    partition: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it has ended for good."""
        return self.state in FINAL

    @property
    def outcome(self) -> int:
        """The exit code that an ended job amounts to; never 0 unless Slurm calls it COMPLETED."""
        if self.state == "COMPLETED":
            return 0
        return self.exit_code or {"NODE_FAIL": 5, "CANCELLED": 143, "OUT_OF_MEMORY": 137}.get(self.state, 1)


def check_slurm() -> None:
    """Raise UsageError that says what is missing, where Slurm's commands are not there."""
    missing = [name for name in ("sbatch", "scontrol") if shutil.which(name) is None]
    if missing:
        raise UsageError(
            f"{' and '.join(missing)} not found: Slurm's commands are not on PATH",
            "on a login node of the cluster, perhaps after module load slurm; --dry-run prints the script without Slurm",
        )


def check_bash(text: str) -> None:
    """Raise UsageError where bash cannot read a script, as with an open quote in a line of the user's."""
    bash = shutil.which("bash")
    if bash is None:
        return
    done = subprocess.run(
        [bash, "-n"], input=text, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        said = done.stderr.strip().splitlines()[:1]
        raise UsageError(
            f"bash cannot read the batch script: {said[0] if said else 'syntax error'}",
            "--before takes whole lines of bash; --dry-run of the rest shows where they go",
        )


def submit_script(script: Path) -> str:
    """Hand a batch script to Slurm; returns the job's number.

    Raises:
        UsageError: Slurm refuses it.
        UnreachableError: its controller does not answer.
    """
    done = subprocess.run(
        ["sbatch", "--parsable", str(script)], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        said = re.sub(r"(?m)^sbatch: (error: )?", "", done.stderr.strip()) or f"exit code {done.returncode}"
        raise _refusal(said)
    return done.stdout.strip().partition(";")[0]


def _refusal(said: str) -> LauncherError:
    if re.search(r"Unable to contact|establish a configuration source|Connection (refused|timed out)", said):
        return UnreachableError(f"Slurm's controller does not answer: {said}")
    hints = {
        "cpu count": "nodes have fewer CPUs: --cpus-per-card",
        "node configuration": "what is asked of a node (cards, CPUs, memory) no node has: sinfo -N -o '%N %c %m %G'",
        "generic resource": "another name of cards: --gres, as sinfo -o %G shows it",
        "gres": "another name of cards: --gres, as sinfo -o %G shows it",
        "node name": "nodes of this cluster: sinfo -N; --nodelist and --exclude take these, and not the same one",
        "node count": "no partition has so many nodes: fewer --nodes; sinfo -s",
        "partition": "partitions: sinfo -s",
        "time limit": "a shorter --time; limits: sinfo -o '%P %l'",
        "account": "your accounts: sacctmgr show associations user=$USER",
    }
    hint = next((cure for word, cure in hints.items() if word in said.lower()), "")
    return UsageError(f"sbatch refuses the job: {said}", hint)


def refuse_second_job(files: str, run_dir: str) -> None:
    """Two jobs on one run folder would share the files that their values lie in.

    Raises:
        UsageError: the job that was submitted from this folder of files has not ended.
    """
    number = _noted_job(files)
    job = read_job(number) if number else None
    if job is not None and not job.is_final:
        raise UsageError(
            f"run folder {run_dir}: its job {number} is {job.state}",
            f"another --run-dir, or wait for it, or scancel {number}",
        )


def note_job(files: str, number: str) -> None:
    """Remember the number of the job for ``refuse_second_job`` and ``job_to_come``."""
    with contextlib.suppress(OSError):
        (Path(files) / JOB_FILE).write_text(number + "\n", encoding="ascii")


def _noted_job(files: str) -> str:
    """The number of the job that was submitted from this folder of files; empty where there is none."""
    try:
        number = (Path(files) / JOB_FILE).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return number if number.isdigit() else ""


def job_to_come(run_dir: str) -> tuple[str, str] | None:
    """Number and state of the job that will go on with a run that was interrupted; None where none will, as far as is known."""
    number = _noted_job(run_dir + FILES_SUFFIX)
    if not number or shutil.which("scontrol") is None:
        return None
    job = read_job(number)
    return None if job is None or job.is_final else (number, job.state)


def read_job(number: str) -> JobState | None:
    """How a job is; None when Slurm does not know it (any more), or does not answer now."""
    try:
        done = subprocess.run(
            ["scontrol", "show", "job", "--oneliner", number],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ANSWER_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return parse_job(done.stdout) if done.returncode == 0 else None


def parse_job(text: str) -> JobState | None:
    """The line of ``scontrol show job --oneliner``; None when it is none."""
    words = dict(re.findall(r"(\w+)=(\S*)", text))
    if "JobState" not in words:
        return None
    code, _, number = words.get("ExitCode", "0:0").partition(":")
    reason = words.get("Reason", "None")
    nodes = words.get("NodeList", "")
    return JobState(
        state=words["JobState"],
        reason="" if reason == "None" else reason,
        exit_code=int(code) or (128 + int(number) if int(number or 0) else 0),
        restarts=int(words.get("Restarts", 0)),
        nodes="" if nodes == "(null)" else nodes,
        partition=words.get("Partition", ""),
    )


def explain_wait(number: str, job: JobState) -> tuple[str, str] | None:
    """Why a job that waits will not get its turn by waiting alone, and the cure; None where that is not known.

    Slurm takes jobs that no partition can hold and says why only to who asks.
    """
    if job.state != "PENDING":
        return None
    for pattern, meaning, cure in _STUCK:
        if re.match(pattern, job.reason):
            partition = job.partition or "of the job"
            why = f"job {number} waits ({job.reason}): {meaning.format(partition=partition)}"
            return why, f"{cure.format(partition=job.partition)}; scancel {number} takes the job back"
    return None
