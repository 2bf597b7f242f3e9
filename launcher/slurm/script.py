"""A batch job -> the text of its script. Pure: no Slurm, no files, no clock. Runs on the head.

The script does what only a batch script can: it hears of the time limit before it comes, and asks Slurm for another
start once the run is saved. All else is dcu-launch's, which starts the ranks from within the job.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace

from launcher.base.errors import UsageError
from launcher.slurm.time_limit import pick_save_grace

#: stands in TARGET's arguments for the number of an array's task
TASK = "{task}"
LINE_WIDTH = 110
_ODD_FOR_SBATCH = re.compile(r"[\"\\\\\n\r]")


@dataclass(frozen=True, slots=True)
class Job:
    """A batch job that runs dcu-launch on the nodes that Slurm gives it.

    Attributes:
        launcher: path of the dcu-launch that the first node starts.
        words: for it: options, TARGET, ARGS; ``{task}`` in them is the number of an array's task.
        workdir: where it starts.
        run_dir: the run folder; a task of an array has one of its own, with ``-<task>`` behind it.
        files: folder of this job's own files: this script, variables, output.
        cards: of each node; 0: Slurm is not asked for any.
        gres: Slurm's name for cards.
        cpus: of each node; None: what Slurm gives.
        options: further options for sbatch, ``(name, value)``; value None: an option without one.
        before: lines for the batch shell before dcu-launch starts.
        has_variables: ``variables.sh`` lies in ``files``, for the batch shell.
        has_named: ``named.env`` lies there, for the ranks.
        has_python: ``python`` lies there, which the ranks are started by.
        save_before_s: how long before the time limit ranks are asked to save and end; 0: never.
        restarts: starts in a row that may bring nothing before Slurm is no longer asked for another; 0: it never is.
        progress: a script's folder of checkpoints, which shows whether it gets on; empty for recipes.
    """

    name: str
    nodes: int
    launcher: str
    words: tuple[str, ...]
    workdir: str
    run_dir: str
    files: str
    cards: int = 0
    gres: str = "dcu"
    cpus: int | None = None
    options: tuple[tuple[str, str | None], ...] = ()
    before: tuple[str, ...] = ()
    has_variables: bool = False
    has_named: bool = False
    has_python: bool = False
    save_before_s: int = 300
    restarts: int = 3
    progress: str = ""

    @property
    def is_array(self) -> bool:
        """Whether Slurm makes several tasks of it."""
        return any(name == "array" for name, _ in self.options)

    @property
    def output(self) -> str:
        """The file that Slurm writes the script's output to; ``%j``, ``%A`` and ``%a`` are the job's numbers."""
        folder = self.files.replace("%", "%%")  # which stands for itself there
        return f"{folder}/out-{'%A_%a' if self.is_array else '%j'}.txt"


def write_script(job: Job) -> str:
    """The whole batch script.

    Raises:
        UsageError: a value cannot stand in a line for sbatch.
    """
    if job.restarts and not job.save_before_s:
        job = replace(job, restarts=0)  # without a signal there is no saved end to start again from
    blocks = [_opening(job), _places(job), _before(job), _signals(job), _launch(job), _conclusion(job)]
    return "\n\n".join("\n".join(lines) for lines in map(list, blocks) if lines) + "\n"


def _opening(job: Job) -> Iterator[str]:
    yield "#!/bin/bash"
    for name, value in _directives(job):
        yield f"#SBATCH --{name}" + ("" if value is None else f"={_quote_for_sbatch(name, value)}")
    yield "#"
    yield "# Written by dcu-launch submit. Slurm starts one task a node, dcu-launch its ranks."
    yield "# Given to sbatch again, a recipe goes on from the newest checkpoint of its run folder."
    meant = [job.run_dir, job.files, job.progress, job.launcher, *job.words]
    if any(re.search(r"[$`]", word) for word in meant):
        yield "# shellcheck disable=SC2016  # '$' in the words below is meant as it stands"
    if any(re.match(r"(\.|source)\s", line) for line in job.before):
        yield "# shellcheck disable=SC1090,SC1091  # files of this machine"


def _directives(job: Job) -> Iterator[tuple[str, str | None]]:
    yield "job-name", job.name
    yield "nodes", str(job.nodes)
    yield "ntasks-per-node", "1"
    if job.cpus:
        yield "cpus-per-task", str(job.cpus)
    if job.cards:
        yield "gres", f"{job.gres}:{job.cards}"
    yield from job.options
    yield "chdir", job.workdir
    yield "output", job.output
    yield "open-mode", "append"
    yield "requeue" if job.restarts else "no-requeue", None
    if job.save_before_s:
        yield "signal", f"B:USR1@{job.save_before_s}"


def _quote_for_sbatch(name: str, value: str) -> str:
    if odd := _ODD_FOR_SBATCH.search(value):
        raise UsageError(f"--{name} {value!r}: {odd[0]!r} cannot stand in a line for sbatch")
    return f'"{value}"' if re.search(r"[^\w@%+=:,./{}\[\]-]", value) else value


def _places(job: Job) -> Iterator[str]:
    if job.is_array:
        yield "task=$SLURM_ARRAY_TASK_ID"
    yield f"run={shlex.quote(job.run_dir)}" + ("-$task" if job.is_array else "")
    if job.has_variables or job.has_named or job.has_python or job.restarts:
        yield f"files={shlex.quote(job.files)}"


def _before(job: Job) -> Iterator[str]:
    if job.has_variables:
        yield "# variables as they were at submit, in a file that nobody else can read"
        yield "# shellcheck source=/dev/null"
        yield '. "$files/variables.sh"'
    yield from job.before


def _signals(job: Job) -> Iterator[str]:
    if job.save_before_s:
        yield f"# Slurm sends USR1 to this shell {job.save_before_s} s before the time limit, or up to a minute earlier."
    yield "# bash runs traps between commands and in wait, never while a child is in the foreground."
    yield "asked="
    if job.save_before_s:
        yield "trap 'asked=USR1; kill -USR1 $! 2>/dev/null' USR1"
    yield "trap 'asked=TERM; kill -TERM $! 2>/dev/null' TERM"
    if job.restarts:
        yield ""
        yield from _progress(job)


def _progress(job: Job) -> Iterator[str]:
    if job.progress:
        yield "# changes whenever the script writes a checkpoint"
        yield f"checkpoints={_quote_word(job, job.progress)}"
        yield "progress() {"
        yield "    find \"$checkpoints\" -mindepth 1 -maxdepth 2 -printf '%p %T@\\n' 2>/dev/null | sort | cksum"
        yield "}"
    else:
        yield "# the newest checkpoint"
        yield 'progress() { cat "$run/checkpoints/latest" 2>/dev/null; }'
    yield f"idle=$files/idle{'-$task' if job.is_array else ''}  # how many starts in a row brought nothing"
    yield '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || rm -f "$idle"'
    yield "before=$(progress)"


def _launch(job: Job) -> Iterator[str]:
    yield 'rm -f "$run/summary.json"'
    lines = [f'{shlex.quote(job.launcher)} --run-dir "$run"']
    if job.save_before_s:
        lines[0] += f" --save-grace {pick_save_grace(job.save_before_s)}"
    lines[0] += ' --python "$files/python"' if job.has_python else ""
    lines[0] += ' --env-file "$files/named.env"' if job.has_named else ""
    for word in (_quote_word(job, word) for word in job.words):
        if len(lines) == 1 or len(lines[-1]) + len(word) > LINE_WIDTH:
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    yield " \\\n".join(lines) + " &"
    yield "launch=$!"
    yield "# asked more than once: the first time may be before dcu-launch listens"
    yield 'while kill -0 "$launch" 2>/dev/null; do'
    yield '    if [ -z "$asked" ]; then wait "$launch"; else kill "-$asked" "$launch" 2>/dev/null; sleep 0.3; fi'
    yield "done"
    yield 'wait "$launch"'
    yield "code=$?"


def _quote_word(job: Job, word: str) -> str:
    """The word for bash; in arrays with the task's number put in."""
    parts = word.split(TASK) if job.is_array else [word]
    return '"$task"'.join(shlex.quote(part) if part or len(parts) == 1 else "" for part in parts)


def _conclusion(job: Job) -> Iterator[str]:
    yield """kind=$(sed -n 's/^  "kind": "\\([a-z_]*\\)".*/\\1/p' "$run/summary.json" 2>/dev/null)"""
    yield """[ "$kind" != 'done' ] || code=0  # a signal may have come after the end"""
    if not job.restarts:
        yield 'exit "$code"'
        return
    number = '"${SLURM_ARRAY_JOB_ID}_$task"' if job.is_array else '"$SLURM_JOB_ID"'
    yield _RESTART.replace("NUMBER", number).replace("RESTARTS", str(job.restarts)).rstrip("\n")


_RESTART = r"""if [ "$asked" != USR1 ] || [ "${kind:-interrupted}" != interrupted ]; then
    exit "$code"
fi

# ended by the time limit: ask Slurm for another start, once, unless starts bring nothing
starts=$(($(cat "$idle" 2>/dev/null || echo 0) + 1))
[ "$(progress)" = "$before" ] || starts=0
echo "$starts" >"$idle"
trap '' TERM  # Slurm answers scontrol, and ends this start with TERM: scontrol itself, too, before it has told
if [ "$starts" -gt RESTARTS ]; then
    echo "dcu-launch: not started again: $starts starts in a row wrote no new checkpoint" >&2
elif scontrol requeue NUMBER; then
    echo "dcu-launch: asked Slurm to start this job again"
else
    echo "dcu-launch: Slurm does not start this job again; given to sbatch once more, it goes on" >&2
fi
exit "$code"
"""
