"""``dcu-launch submit``: a batch script that runs dcu-launch within a Slurm job, written, handed in and told of.

Everything is checked before Slurm hears of it: TARGET, recipe, variables. Runs on a login node.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from launcher.base.env_file import EnvOp, make_op, parse_options
from launcher.base.errors import UsageError
from launcher.commands.run import run
from launcher.commands.submit_options import SLURM_OPTIONS, SubmitCommand
from launcher.commands.target import Target, read_target, warn_of_stray_options
from launcher.launch.run_folder import check_place, name_run
from launcher.slurm.sbatch import (
    FILES_SUFFIX,
    check_bash,
    check_slurm,
    explain_wait,
    note_job,
    read_job,
    refuse_second_job,
    submit_script,
)
from launcher.slurm.script import TASK, Job, write_script
from launcher.slurm.time_limit import parse_time, pick_save_time
from launcher.slurm.variables import write_env_file, write_variables

#: options of a run that have no place here: the job's nodes are its hosts, and it is in the background as it is
LEFT_OUT = frozenset({
    "hosts_file", "transport", "accept_new_host_keys", "connect_timeout", "fanout", "detach", "dry_run", "dry_run_nodes",
    "run_dir", "name", "save_grace", "env_options", "words",
})  # fmt: skip
RUN_OPTIONS = [
    param for param in run.params if isinstance(param, click.Option) and param.name not in LEFT_OUT
]
#: options of sbatch that submit sets itself, and what to use instead
OURS = {
    "export": "--env and --env-file: values arrive whole, and nobody else sees them",
    "time": "--time: the save before the limit goes by it", "signal": "--save-before-limit",
    "requeue": "--restarts", "no-requeue": "--restarts 0", "output": "--run-dir",
    "chdir": "a shell in that folder", "ntasks-per-node": "nothing: one task a node is right",
    "ntasks": "nothing: one task a node is right", "wrap": "TARGET", "parsable": "nothing",
    "nodes": "--nodes", "gres": "--cards and --gres", "cpus-per-task": "--cpus-per-card", "open-mode": "nothing",
}  # fmt: skip
#: options of submit that are sbatch's own
PASSED = ("partition", "time", "mem", "nodelist", "exclude", "account", "qos", "array", "dependency")
_VARIABLE = re.compile(r"env\.(?!setup[=+])[A-Za-z_]\w*[+-]?=")


@click.command(
    cls=SubmitCommand,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [ARGS]...")
@click.pass_context
def submit(context: click.Context, /, **options: Any) -> int:
    """Run TARGET as a Slurm job: write the batch script, submit it, say how to follow and stop it.

    TARGET and ARGS are those of a run. Before the time limit all ranks save at the border of a step and Slurm is asked
    for another start, which goes on from there. With --array, {task} in ARGS is the task's number.
    """
    target = read_target([word.replace(TASK, "0") for word in options["words"]], options["as_module"])
    words, variables = _split_words(options["words"], target)
    named = _write_named(variables, options["env"])
    job, remarks = _make_job(options, target, [*_words_of_run(context), *words], bool(named))
    text = write_script(job)
    check_bash(text)
    for remark in remarks:
        click.echo(f"dcu-launch: note: {remark}", err=True)
    names = [name for param in context.command.params for name in param.opts]
    if stray := warn_of_stray_options(target, [name for name in names if name.startswith("--")]):
        click.echo(f"dcu-launch: warning: {stray}", err=True)
    if options["dry_run"]:
        click.echo(text, nl=False)
        return 0
    check_slurm()
    refuse_second_job(job.files, job.run_dir)
    number = _submit(job, text, named, options["container"])
    _tell(job, number)
    _warn_of_wait(number)
    if not options["follow"]:
        return 0
    from launcher.commands.follow import follow_job

    return follow_job(number, Path(job.run_dir))


submit.params = [*SLURM_OPTIONS, *RUN_OPTIONS, *submit.params]


def _words_of_run(context: click.Context) -> tuple[str, ...]:
    """The options of a run that were given, as words for the dcu-launch within the job."""
    words: list[str] = []
    for param in RUN_OPTIONS:
        name = str(param.name)
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        for item in value if param.multiple else (value,):
            words += _render(param, item)
    return tuple(words)


def _render(param: click.Option, value: object) -> Iterator[str]:
    yield param.opts[0]
    if not param.is_flag:
        yield f"{value:g}" if isinstance(value, float) else str(value)


def _make_job(
    options: Mapping[str, Any], target: Target, words: Sequence[str], has_named: bool
) -> tuple[Job, list[str]]:
    """The job, and what is worth saying about it."""
    passed = [(name, str(options[name])) for name in PASSED if options[name]]
    extra = [_parse_extra(word) for word in options["sbatch"]]
    if options["follow"] and any(name == "array" for name, _ in (*passed, *extra)):
        raise UsageError(
            "--follow follows one run, an array has many", "dcu-launch ps, dcu-launch attach RUN"
        )
    time_s = parse_time(options["time"]) if options["time"] else None
    save_before_s = pick_save_time(options["save_before_limit"], time_s)
    run_dir, files = _pick_folders(options, target)
    restarts, remarks = _pick_restarts(options, target)
    counts_cards = options["gres"] != "none"
    if not counts_cards and options["ranks_per_host"] is None:
        words = ("--nproc", str(options["cards"]), *words)
    job = Job(
        name=options["job_name"] or options["name"] or Path(target.name).stem,
        nodes=options["nodes"],
        launcher=find_launcher(),
        words=tuple(words),
        workdir=os.getcwd(),
        run_dir=run_dir,
        files=files,
        cards=options["cards"] if counts_cards else 0,
        gres=options["gres"],
        cpus=max(1, options["cards"]) * options["cpus_per_card"],
        options=(*passed, *extra),
        before=tuple(options["before"]),
        has_variables=bool(write_variables(os.environ)),
        has_named=has_named,
        has_python=bool(options["container"]),
        save_before_s=save_before_s,
        restarts=restarts,
        progress=os.path.abspath(options["checkpoints"]) if options["checkpoints"] else "",
    )
    return job, remarks


def _parse_extra(word: str) -> tuple[str, str | None]:
    """``--name=value`` or ``--name`` of ``--sbatch``."""
    name, equals, value = word.removeprefix("--").partition("=")
    if not word.startswith("--") or not name or " " in name:
        raise UsageError(
            f"--sbatch {word}: expected a long option of sbatch", "as in --sbatch --reservation=maintenance"
        )
    if name in OURS:
        raise UsageError(f"--sbatch {word}: submit sets this itself", f"use {OURS[name]}")
    return name, value if equals else None


def _pick_folders(options: Mapping[str, Any], target: Target) -> tuple[str, str]:
    """The run folder, and the folder of the job's files beside it; new ones unless the user names the run folder."""
    if options["run_dir"]:
        path = os.path.abspath(options["run_dir"])
        check_place(Path(path))
        return path, path + FILES_SUFFIX
    first = Path("runs").absolute() / name_run(target.name, options["name"])
    for number in range(1, 1000):
        path = str(first) if number == 1 else f"{first}-{number}"
        if not os.path.exists(path) and not os.path.exists(path + FILES_SUFFIX):
            return path, path + FILES_SUFFIX
    raise UsageError(f"run folder {first}: a thousand runs have that name", "name another with --run-dir")


def _pick_restarts(options: Mapping[str, Any], target: Target) -> tuple[int, list[str]]:
    """How many starts may bring nothing; 0 where another start would begin from nothing, with the reason."""
    restarts = options["restarts"]
    if restarts and target.recipe is not None and target.recipe["checkpoint"]["resume"] == "never":
        return 0, ["checkpoint.resume=never: after its time limit the job is not started again"]
    if restarts and target.recipe is None and not options["checkpoints"]:
        return 0, [
            "after its time limit the job is not started again; where the script goes on from its own checkpoints: "
            "--checkpoints DIR"
        ]
    return restarts, []


def find_launcher() -> str:
    """The dcu-launch to start within the job: the one of this interpreter, which all nodes see in the same place."""
    beside = os.path.join(os.path.dirname(sys.executable), "dcu-launch")
    return beside if os.access(beside, os.X_OK) else shutil.which("dcu-launch") or "dcu-launch"


def _split_words(words: Sequence[str], target: Target) -> tuple[list[str], list[str]]:
    """TARGET and ARGS for the script, and a recipe's ``env.NAME=VALUE``: values may be secret, the script is not."""
    if target.recipe is None:
        return list(words), []
    variables = [word for word in words if _VARIABLE.match(word) and TASK not in word]
    return [word for word in words if word not in variables], variables


def _write_named(variables: Sequence[str], words: Sequence[str]) -> str:
    """The env file of a recipe's ``env.NAME=VALUE`` words and of ``--env``; empty where there are none."""
    problems: list[str] = []
    ops: list[EnvOp | None] = []
    for word in variables:
        key, _, value = word.removeprefix("env.").partition("=")
        ops.append(make_op(key, value, "env", problems))
    ops += parse_options(words, os.environ, problems)
    if problems:
        raise UsageError(
            "\n".join(problems),
            "NAME copies this machine's value, NAME=VALUE sets, NAME+=VALUE prepends, NAME- unsets",
        )
    return write_env_file([op for op in ops if op is not None])


def _submit(job: Job, text: str, named: str, container: str | None) -> str:
    """Write the job's files and hand it to Slurm; what Slurm refuses leaves no values behind."""
    is_new = not os.path.exists(job.files)
    try:
        number = submit_script(_write_files(job, text, named, container))
    except BaseException:
        if is_new:
            shutil.rmtree(job.files, ignore_errors=True)
        raise
    note_job(job.files, number)
    return number


def _write_files(job: Job, text: str, named: str, container: str | None) -> Path:
    """The job's files on disk, those with values for this user's eyes alone; the path of the script.

    Raises:
        UsageError: they cannot be written.
    """
    folder = Path(job.files)
    contents = {"job.sh": (text, 0o700), "named.env": (named, 0o600)}
    contents["variables.sh"] = (write_variables(os.environ), 0o600)
    contents["python"] = (f'#!/bin/sh\nexec {container} python3 "$@"\n' if container else "", 0o755)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (content, mode) in contents.items():
            if content:
                _write_file(folder / name, content, mode)
    except OSError as error:
        raise UsageError(
            f"{error.filename or folder}: {error.strerror}", "name another with --run-dir"
        ) from None
    return folder / "job.sh"


def _write_file(path: Path, content: str, mode: int) -> None:
    """Write it aside, readable for others from its first byte on only if it may be, and move it into place."""
    aside = path.with_name(f".{path.name}.partial")
    aside.unlink(missing_ok=True)
    number = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(number, "w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        file.write(content)
    os.chmod(aside, mode)
    os.replace(aside, path)


def _tell(job: Job, number: str) -> None:
    """What was submitted, where it writes, how to follow and how to stop it."""
    cards = f" x {job.cards} card{'s' * (job.cards != 1)}" if job.cards else ""
    array = ", an array" if job.is_array else ""
    output = os.path.join(job.files, f"out-{number}{'_TASK' if job.is_array else ''}.txt")
    run_dir = shlex.quote(job.run_dir) + ("-TASK" if job.is_array else "")
    click.echo(f"dcu-launch: job {number} submitted: {job.nodes} node{'s' * (job.nodes != 1)}{cards}{array}")
    click.echo(f"dcu-launch: run folder: {run_dir}")
    click.echo(f"dcu-launch: follow it: tail -F {shlex.quote(output)}")
    click.echo(
        f"dcu-launch: stop it: scancel {number}; with --grace for the save: scancel --batch --signal=TERM {number}"
    )


def _warn_of_wait(number: str) -> None:
    """Slurm takes what no partition can hold, and says so only to who asks."""
    state = read_job(number)
    told = explain_wait(number, state) if state is not None else None
    if told is not None:
        click.echo(f"dcu-launch: warning: {told[0]}\n  hint: {told[1]}", err=True)
