"""Which run a command means: RUN is a run folder, the name of one, or nothing where only one can be meant."""

from __future__ import annotations

from pathlib import Path

from launcher.base.errors import UsageError
from launcher.launch.registry import registered_runs
from launcher.launch.run_state import RunState, read_run

#: what to do about a run folder whose files cannot be read
OF_DAMAGED = (
    "restore the file or its permissions, or judge by dcu-launch logs and by what lies in checkpoints/"
)
SEE_PS = "dcu-launch ps --all lists your runs; a run folder's path names a run, too"


def all_runs() -> list[RunState]:
    """The runs of this user, the newest first: of the user's list, and of ``runs/`` in this folder; only what can be seen."""
    paths = registered_runs()
    known = {path.absolute() for path in paths}
    try:
        near = sorted(Path("runs").absolute().iterdir(), reverse=True)
    except OSError:
        near = []
    found = (read_run(path) for path in [*paths, *(path for path in near if path not in known)])
    return sorted((run for run in found if run is not None), key=_started, reverse=True)


def _started(run: RunState) -> float:
    return run.head.started if run.head is not None else run.ended or 0.0


def find_run(word: str | None, *, alive: bool = False) -> RunState:
    """The run that is meant.

    Args:
        word: path, name or the start of one name; None: the run that goes on, of this folder before all others, else
            the newest.
        alive: only a run that goes on can be meant, and without a word the one of this folder: what acts on a run
            must not reach one elsewhere by chance, which on a shared account is somebody else's.

    Raises:
        UsageError: there is none, there are several, or it has ended.
    """
    if word is not None:
        refuse_empty(word)
    run = _newest(alive) if word is None else _named(word)
    if alive and not run.is_alive:
        why = f": {run.why}" if run.why else ""
        if run.state == "damaged":
            raise UsageError(f"{run.name} ({run.path}) is {run.state}{why}", OF_DAMAGED)
        to_come = tell_job(run)
        raise UsageError(f"{run.name} does not run any more, it is {run.state}{why}", to_come)
    return run


def refuse_empty(word: str) -> None:
    """An empty word is a variable of the user's shell that is not set, and means no run; raises UsageError."""
    if not word.strip():
        raise UsageError("RUN is empty", "a variable of your shell that is not set? " + SEE_PS)


def _newest(alive: bool) -> RunState:
    runs = all_runs()
    living = [run for run in runs if run.is_alive]
    here = [run for run in living if _is_here(run)]
    near = here or living
    if len(near) == 1 and (here or not alive):
        return near[0]
    if alive and near:
        names = "\n".join(f"{run.name}  {run.path}" for run in near)
        where = "" if here else ", none of this folder"
        count = "1 run goes on" if len(near) == 1 else f"{len(near)} runs go on"
        raise UsageError(f"{count}{where}; name the one that you mean:\n{names}")
    if alive or not runs:
        to_come = [f"{run.name}: {told}" for run in runs if (told := tell_job(run))]
        text = "no run of yours goes on" if alive else "no run of yours is known here"
        raise UsageError(text, "\n".join([*to_come, SEE_PS]))
    return near[0] if near else runs[0]


def tell_job(run: RunState) -> str:
    """Of a run that a Slurm job will go on with: which, and how to end that; else nothing."""
    if run.state != "interrupted":
        return ""
    from launcher.slurm.sbatch import job_to_come

    job = job_to_come(str(run.path))
    return f"Slurm's job {job[0]} ({job[1]}) goes on with it; scancel {job[0]} ends that" if job else ""


def _is_here(run: RunState) -> bool:
    """Whether its folder lies in the working folder: who works there means its own runs, whatever else goes on."""
    try:
        return run.path.resolve().is_relative_to(Path.cwd())
    except OSError:  # the working folder is gone
        return False


def _named(word: str) -> RunState:
    direct = read_run(Path(word).absolute())
    if direct is not None:
        return direct
    runs = all_runs()
    found = [run for run in runs if run.name == word] or [run for run in runs if run.name.startswith(word)]
    if len(found) > 1:  # of several runs with one name the one that goes on is meant
        found = [run for run in found if run.is_alive] or found
    if len(found) > 1:
        names = "\n".join(str(run.path) for run in found)
        raise UsageError(f"{word}: {len(found)} runs could be meant, name one by its folder:\n{names}")
    if not found:
        raise UsageError(f"{word}: no run of yours has this name, and it is no run folder", SEE_PS)
    return found[0]
