"""A Slurm allocation -> list of Host, in place of a hostfile. Runs on the head, inside the job; asks scontrol, no node.

The cards of this job stand in variables where Slurm's plugin for the GRES sets them (each node's step gets its own), else
only in the ``IDX`` ranges of ``scontrol show job -d``. They are never counted up from 0: two jobs on one node would
then share cards.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from launcher.base.errors import UsageError
from launcher.hosts.host import Host
from launcher.hosts.target import BadWord, expand_names

SCONTROL_LIMIT_S = 30.0
#: names under which sites count accelerators
CARD_GRES = ("dcu", "hcu", "gpu")
#: set by Slurm's own plugin beside the variable that hides cards
_SLURM_SET_CARDS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_GPUS_ON_NODE")
_VISIBLE = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
_NODES = re.compile(r"^\s+Nodes=(\S+)\s.*?\bGRES(?:_IDX)?=(\S*)", re.MULTILINE)
_CARDS = re.compile(r"(\w+)((?::[^:(,]+)*)\((?:IDX:([^)]*)|CNT:\d+)\)")


def job_of(environ: Mapping[str, str]) -> str | None:
    """The number of the Slurm job this runs in; None outside of one."""
    return environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or None


def read_kill_wait() -> float | None:
    """Seconds that Slurm leaves a job between the TERM of scancel and KILL; None when it does not say."""
    said, _ = _scontrol("show", "config")
    found = re.search(r"^KillWait\s*=\s*(\d+) sec", said, re.MULTILINE)
    return float(found[1]) if found else None


def read_allocation(environ: Mapping[str, str], ranks_per_host: int | None) -> list[Host]:
    """The hosts of this job in Slurm's order, each with the job's cards on it.

    Args:
        ranks_per_host: ``--nproc``; on nodes where the job has no cards, ranks that use none.

    Raises:
        UsageError: this is no allocation, or nothing says which cards are the job's.
    """
    job = job_of(environ)
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
    if job is None or not nodelist:
        raise UsageError(
            "no Slurm allocation here: SLURM_JOB_ID or SLURM_JOB_NODELIST is not set",
            "start it from a batch script or salloc, or let dcu-launch submit write one",
        )
    num_tasks = int_of(environ.get("SLURM_STEP_NUM_TASKS"))
    if "SLURM_STEP_ID" in environ and num_tasks > 1:
        raise UsageError(
            f"srun started dcu-launch {num_tasks} times",
            "start it once, without srun: it brings the job's nodes together by itself",
        )
    if int_of(environ.get("SLURM_HET_SIZE")) > 1:
        raise UsageError(
            "this is a heterogeneous job: a step of one component reaches the nodes of the others not at all",
            "name the nodes in a hostfile, or submit it as one component",
        )
    names = expand_node_list(nodelist)
    here = names == [environ.get("SLURMD_NODENAME")]
    tasks = _tasks_asked_for(environ, len(names))
    cards = _find_cards(environ, job, names, ranks_per_host is not None or tasks is not None)
    wanted = [ranks_per_host] * len(names)
    if ranks_per_host is None and tasks is not None:
        wanted = [
            count if cards[name] == NO_CARDS else None for name, count in zip(names, tasks, strict=True)
        ]
    return [
        _make_host(name, job, cards[name], count, here) for name, count in zip(names, wanted, strict=True)
    ]


def int_of(text: str | None) -> int:
    """A variable that holds a number; 0 where there is none."""
    return int(text) if text and text.isdigit() else 0


def _tasks_asked_for(environ: Mapping[str, str], num_nodes: int) -> list[int] | None:
    """Tasks on each node where the job names their number; Slurm's own guess of one a node is no wish of anybody."""
    if not environ.get("SLURM_NTASKS_PER_NODE") and not environ.get("SLURM_NTASKS"):
        return None
    tasks = expand_counts(environ.get("SLURM_TASKS_PER_NODE", ""))
    return tasks if len(tasks) == num_nodes and all(tasks) else None


def expand_counts(text: str) -> list[int]:
    """``2(x3),1`` -> 2, 2, 2, 1; nothing where it cannot be read."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            return []
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _make_host(name: str, job: str, cards: _Cards, ranks_per_host: int | None, here: bool) -> Host:
    devices = cards if isinstance(cards, tuple) else ()
    # a job that was given no card must not take one that it sees
    hidden = dict.fromkeys(_VISIBLE[::2], "") if cards == NO_CARDS else {}
    slots = ranks_per_host or len(devices) or None
    env = MappingProxyType(hidden)
    return Host(
        name, slots=slots, devices=devices, env=env, source=f"Slurm job {job}", job=job, is_local=here
    )


def expand_node_list(text: str) -> list[str]:
    """``gpu[01-03],login`` and the like as names, in Slurm's order.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return [name for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text) for name in expand_names(part)]
    except BadWord as error:
        raise UsageError(f"Slurm's node list {text}: {error.problem}") from None


#: what is known of a job's cards on a node: their numbers, or one of these two words
_Cards = tuple[str, ...] | str
OWN_VARIABLE = "the node's own variable says"
NO_CARDS = "none"


def _find_cards(
    environ: Mapping[str, str], job: str, names: Sequence[str], goes_without: bool
) -> dict[str, _Cards]:
    if any(name in environ for name in _SLURM_SET_CARDS) and any(name in environ for name in _VISIBLE):
        return dict.fromkeys(names, OWN_VARIABLE)
    text, problem = _scontrol("show", "job", "-d", job)
    found = read_job_cards(text)
    missing = [name for name in names if not found.get(name)]
    if not missing:
        return {name: found[name] for name in names}
    if len(missing) == len(names) and _is_whole(text):
        return dict.fromkeys(names, OWN_VARIABLE)
    if not problem and goes_without and not any(name in found for name in names):
        return dict.fromkeys(names, NO_CARDS)
    raise _unknown_cards(job, missing, problem, any(name in found for name in names))


def _is_whole(text: str) -> bool:
    """Whether all of each node is this job's, so that every card there is (``--exclusive``, or a site without sharing)."""
    return re.search(r"\bOverSubscribe=(NO|EXCLUSIVE)\b", text) is not None


def read_job_cards(text: str) -> dict[str, tuple[str, ...]]:
    """``scontrol show job -d`` -> for each node with cards of the job their numbers; none where only a count is told."""
    cards: dict[str, tuple[str, ...]] = {}
    for nodes, gres in _NODES.findall(text):
        held = [match for match in _CARDS.finditer(gres) if match[1] in CARD_GRES]
        if held:
            numbers = tuple(number for match in held for number in _expand_numbers(match[3] or ""))
            cards.update(dict.fromkeys(expand_node_list(nodes), numbers))
    return cards


def _expand_numbers(text: str) -> list[str]:
    numbers: list[str] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last or first).isdigit():
            numbers += [str(number) for number in range(int(first), int(last or first) + 1)]
    return numbers


def _scontrol(*words: str) -> tuple[str, str]:
    """What scontrol says, and why it says nothing."""
    try:
        done = subprocess.run(
            ["scontrol", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SCONTROL_LIMIT_S,
            check=False,
        )
    except FileNotFoundError:
        return "", "scontrol is not on PATH"
    except subprocess.TimeoutExpired:
        return "", f"scontrol did not answer within {SCONTROL_LIMIT_S:.0f} s"
    return done.stdout, "" if done.returncode == 0 else f"scontrol: {done.stderr.strip()}"


def _unknown_cards(job: str, missing: Sequence[str], problem: str, is_counted: bool) -> UsageError:
    where = ", ".join(missing)
    if problem:
        return UsageError(
            f"Slurm job {job}: its cards are unknown: no variable names them, and {problem}",
            "make scontrol usable here, or name nodes and cards in a hostfile: node01 devices=0,1",
        )
    if is_counted:
        return UsageError(
            f"Slurm job {job}: it has cards on {where}, but nothing says which: no variable, and no IDX in "
            f"`scontrol show job -d {job}`",
            "the site's gres.conf needs File= for them; or take whole nodes with --exclusive",
        )
    return UsageError(
        f"Slurm job {job}: it has no cards on {where}: no variable, and no GRES in `scontrol show job -d {job}`",
        "ask for cards, as in --gres=dcu:4, or for whole nodes with --exclusive; "
        "--nproc N, or --ntasks-per-node of the job, runs so many ranks a node without cards",
    )
