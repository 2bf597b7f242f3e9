"""``dcu-launch env``: which variable goes to which host, from where, and why every other one does not. Contacts nobody."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from launcher.base.env import EnvGroup, EnvRow, explain_env, plan_envs, printable
from launcher.base.variable import DCU_DEFAULTS, LAUNCHER_NAMES, RANK_DEFAULTS
from launcher.commands.options import ENV_OPTIONS, HOST_OPTIONS, shared_options
from launcher.hosts.host import Host

_ORDER = (
    "Later wins: the node's own environment; sent by pattern; set-up scripts; config env, --env-file, --env,\n"
    "hostfile env.NAME; DCU defaults where still unset; the launcher's own (RANK, MASTER_ADDR and the like).\n"
)
_SHORT = 72


@click.command(context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
@shared_options(HOST_OPTIONS, ENV_OPTIONS)
@click.option("-m", "as_module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.option("--explain", is_flag=True, help="A line for each variable that stays; values whole.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [ARGS]...")
def env(explain: bool, **options: Any) -> None:
    """Print which variable goes to which host, from where, and why the others do not; secrets are masked.

    Takes the options of a run. TARGET is looked at for the variables that a recipe names.
    """
    from launcher.commands.request import read_hosts
    from launcher.commands.target import read_target

    target = read_target(options["words"], options["as_module"])
    config_env = (target.recipe or {}).get("env") or {}
    listed = read_hosts(options["hosts_file"], options["ranks_per_host"])
    text = show_env(os.environ, config_env, options["env_files"], options["env_options"], listed, explain)
    click.echo(text, nl=False)


def show_env(
    environ: Mapping[str, str],
    config_env: Mapping[str, Any],
    env_files: Sequence[str | Path],
    env_options: Sequence[str],
    hosts: Sequence[Host],
    explain: bool = False,
) -> str:
    """What happens to the environment of each set of equal hosts; raises UsageError for all mistakes at once.

    Args:
        explain: a line for each variable that stays, and values at full length.
    """
    plans = plan_envs(environ, config_env, env_files, env_options, hosts)
    groups = explain_env(plans, hosts)
    blocks = [_ORDER]
    blocks += ["\n".join(_going(group, hosts, explain)) + "\n" for group in groups]
    alike: dict[tuple[EnvRow, ...], list[int]] = {}
    for group in groups:
        staying = tuple(row for row in group.rows if row.operation == "not sent")
        alike.setdefault(staying, []).extend(group.hosts)
    for rows, indexes in alike.items():
        if rows:
            blocks.append(
                f"not sent to {_names(hosts, indexes)}:\n" + "\n".join(_staying(rows, explain)) + "\n"
            )
    blocks.append("\n".join(_own()) + "\n")
    return "\n".join(blocks)


def _own() -> Iterator[str]:
    """What the launcher adds by itself, the same on every host."""
    yield "defaults, where nothing else sets them:"
    for name, value in RANK_DEFAULTS.items():
        yield f"  {name}={value}  ranks"
    for name, value in DCU_DEFAULTS.items():
        yield f"  {name}={value}  nodes with DCUs"
    yield "  OMP_NUM_THREADS=<the node's processors / its ranks, at most 16>"
    yield "  GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME=<the interface by which the node reaches the others; lo where it is alone>"
    yield "  ACCELERATE_USE_CPU=true  scripts on nodes without a card, DeepSpeed's excepted"
    yield "the launcher's own, above all else:"
    names = " ".join(sorted(LAUNCHER_NAMES))
    yield from textwrap.wrap(names, 100, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _names(hosts: Sequence[Host], indexes: Sequence[int]) -> str:
    from launcher.hosts.host import unique_labels
    from launcher.hosts.target import fold_names

    labels = unique_labels(hosts)
    return fold_names(labels[index] for index in indexes)


def _going(group: EnvGroup, hosts: Sequence[Host], explain: bool) -> Iterator[str]:
    yield f"{_names(hosts, group.hosts)}:"
    yield from _table([row for row in group.rows if row.operation != "not sent"], explain)
    if group.is_local:
        yield "  inherited   all else: ranks start on this machine"


def _staying(rows: Sequence[EnvRow], explain: bool) -> Iterator[str]:
    """The variables that stay, a line each when explained, else by reason."""
    if explain:
        width = max(len(printable(row.name)) for row in rows)
        yield from (f"  {printable(row.name):{width}}  {row.why}" for row in rows)
        return
    reasons: dict[str, list[str]] = {}
    for row in rows:
        reasons.setdefault(row.why, []).append(printable(row.name))
    for why, names in reasons.items():
        yield f"  {why}:"
        yield from textwrap.wrap(
            " ".join(names), 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        )


def _table(rows: Sequence[EnvRow], explain: bool) -> Iterator[str]:
    cells = [
        (row.operation, _assignment(row, None if explain else _SHORT), f"{row.why} ({row.when})")
        for row in rows
    ]
    width = min(max((len(cell[1]) for cell in cells), default=0), _SHORT)
    for operation, assignment, why in cells:
        yield f"  {operation:10}  {assignment:{width}}  {printable(why)}"


def _assignment(row: EnvRow, limit: int | None) -> str:
    return row.name if row.operation == "unset" else printable(f"{row.name}={row.value}", limit)
