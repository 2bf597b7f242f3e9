"""Command line, hostfile and recipe -> Request: all that is asked for, before anything was touched. Runs on the head."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.base.env import EnvPlan, plan_envs
from launcher.base.errors import UsageError
from launcher.commands.script_options import read_script_options, warn_of_local_rank
from launcher.commands.target import Target, read_target, warn_of_stray_options
from launcher.hosts.host import Host
from launcher.launch.order import RunSpec
from launcher.launch.script_settings import ScriptSettings

#: loaded before ranks are forked; nothing here may touch a card or start a thread
RECIPE_MODULES = ("torch", "accelerate", "transformers", "peft", "launcher.train.main", "launcher.train.job")
#: one of them is set inside a Slurm job
JOB_VARIABLES = ("SLURM_JOB_ID", "SLURM_JOBID")
SAFE_BEFORE_FORK = ("torch", "numpy", "transformers", "peft", "accelerate", "datasets")

#: the default of --grace
GRACE_S = 30.0
#: of Slurm's KillWait, for the end of agents and the summary
END_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Request:
    """All that the command line, hostfile and recipe ask for; nothing was touched yet."""

    spec: RunSpec
    hosts: Sequence[Host]
    env_plans: Sequence[EnvPlan]
    options: Mapping[str, Any]
    remarks: tuple[str, ...] = ()
    recipe: Mapping[str, Any] | None = None

    def shown_ranks(self, world_size: int) -> frozenset[int] | None:
        """Ranks named by ``--ranks``; None: all.

        Raises:
            UsageError: the list is not one, or names a rank that does not exist.
        """
        from launcher.commands.rank_list import read_ranks

        return read_ranks(self.options["shown_ranks"], world_size)


def read_request(options: Mapping[str, Any]) -> Request:
    """Read hostfile, target and variables; every mistake of a kind is told at once."""
    if options.get("allowed"):
        from launcher.preflight.codes import check_allowed

        check_allowed(options["allowed"])
    hosts = read_hosts(options["hosts_file"], options["ranks_per_host"], options["transport"])
    target = read_target(options["words"], options["as_module"])
    if options.get("smoke"):
        from launcher.commands.smoke import make_smoke

        target = make_smoke(target)
    recipe_env: dict[str, Any] = dict((target.recipe or {}).get("env") or {})
    setup = tuple(options["setup"]) or tuple(recipe_env.pop("setup", None) or ())
    recipe_env.pop("setup", None)
    env_plans = plan_envs(os.environ, recipe_env, options["env_files"], options["env_options"], hosts)
    workdir = os.path.abspath(options["workdir"] or os.getcwd())
    settings = read_script_options(options, target, workdir)
    env_plans = [replace(plan, named=(*settings.named, *plan.named)) for plan in env_plans]
    warning = warn_of_local_rank(options, target)
    remarks = [f"note: {note}" for note in settings.notes]
    remarks += [f"warning: {warning}"] if warning else []
    if stray := warn_of_stray_options(target):
        remarks.append(f"warning: {stray}")
    spec = _make_spec(options, target, setup, workdir, settings)
    spec = replace(spec, grace_s=_grace_within(spec.grace_s, hosts))
    if spec.grace_s < options["grace"] != GRACE_S:
        remarks.append(
            f"note: Slurm's KillWait leaves ranks {spec.grace_s:.0f} s, not --grace {options['grace']:g}"
        )
    return Request(spec, hosts, env_plans, options, tuple(remarks), target.recipe)


def read_hosts(path: str | None, ranks_per_host: int | None, transport: str = "auto") -> Sequence[Host]:
    """The hosts of the hostfile; without one those of the Slurm job this runs in, else this machine.

    Raises:
        UsageError: srun is asked for where it reaches nobody.
    """
    from launcher.hosts.hostfile import local_hosts, read_hostfile

    if path is not None and transport == "srun":
        raise UsageError(
            "srun reaches the nodes of a Slurm job alone, not those of a hostfile",
            "leave --hosts out inside the job, or --transport",
        )
    if path is not None:
        return read_hostfile(path)
    if transport == "srun" or any(map(os.environ.get, JOB_VARIABLES)):
        from launcher.hosts.slurm import read_allocation

        return read_allocation(os.environ, ranks_per_host)
    return local_hosts(ranks_per_host)


def _grace_within(grace_s: float, hosts: Sequence[Host]) -> float:
    """What ranks of a Slurm job have to end: less than Slurm gives the whole job, so that there is an end to tell of."""
    from launcher.hosts.slurm import read_kill_wait

    limit_s = read_kill_wait() if any(host.job for host in hosts) else None
    return grace_s if limit_s is None else min(grace_s, max(1.0, limit_s - END_MARGIN_S))


def _make_spec(
    options: Mapping[str, Any], target: Target, setup: tuple[str, ...], workdir: str, settings: ScriptSettings
) -> RunSpec:
    from launcher.launch.run_folder import name_run

    name = name_run(target.name, options["name"])
    run_dir = Path(options["run_dir"] or Path("runs") / name).absolute()
    return RunSpec(
        name=run_dir.name,
        kind=target.kind,
        target=target.name,
        arguments=target.arguments,
        workdir=workdir,
        run_dir=str(run_dir),
        recipe=_for_ranks(target.recipe),
        ranks_per_host=options["ranks_per_host"],
        python=options["python"],
        setup=setup,
        master_address=options["master_address"],
        master_port=options["master_port"],
        start=options["start"],
        modules=modules_of(target),
        grace_s=options["grace"],
        variables=settings.variables,
        local_rank_option=settings.local_rank_option,
        uses_deepspeed=settings.uses_deepspeed,
        files=settings.files,
        bind=options["bind"],
        sync=os.path.abspath(options["sync"]) if options["sync"] else "",
        sync_target=os.path.abspath(options["workdir"] or options["sync"] or ""),
    )


def modules_of(target: Target) -> tuple[str, ...]:
    """What to import once a node before ranks are forked: the recipe's stack, or what a script itself imports of it."""
    if target.kind == "recipe":
        return RECIPE_MODULES
    try:
        tree = ast.parse(Path(target.name).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            named.add(node.module.partition(".")[0])
    return tuple(module for module in SAFE_BEFORE_FORK if module in named)


def _for_ranks(recipe: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The recipe without the launcher's own part: variables go to ranks as variables."""
    if recipe is None:
        return None
    from launcher.base.config import config_hash

    config = {key: value for key, value in recipe.items() if key != "env"}
    return {"config": config, "config_hash": config_hash(config)}
