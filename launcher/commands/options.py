"""Options that several verbs share, and the click command class that knows ``--dry-run[=nodes]``. Light imports only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

VERB_HELP = """\b
Examples:
  dcu-launch                                        (the demo on this machine)
  dcu-launch --hosts hostfile configs/lora.yaml model.path=/models/Qwen2.5-7B data.path=train.json
  dcu-launch --hosts hostfile --dry-run=nodes train.py --lr 1e-4
  dcu-launch --hosts hostfile --detach -m package.train

\b
Verbs (first word; without one: run):
  run          the whole pipeline
  check        preflight alone: what would fail on these hosts, and the cure
  hosts        parse and print the hostfile; --example
  env          which variable goes to which host, and why
  constraints  a pip file that keeps this node's torch
  submit       run as a Slurm job; survives its time limit
  ps           your runs: how far they are, or how they ended
  logs         what the ranks of a run said; -f goes on
  attach       watch a run as on its own terminal
  stop, save   end a run, or have it write a checkpoint now
  init         a starter recipe, hostfile and batch script for this cluster
  generate     answer questions with what a run learnt
  merge        a run's adapter and its base as one model
  estimate     the memory that a card needs
  report       a page of a run, or of several compared
  diagnose     why the loss does not fall, and what to try

\b
Completion of words: eval "$(dcu-launch --completion bash)"; zsh and fish, too.

\b
Exit codes: 0 done, 1 a rank failed (or its own code, 128+N for a signal),
2 wrong use, config or hostfile, 3 preflight refused, 4 a host could not be
reached, 5 a node or the head was lost, 70 a bug, 129/130/143 stopped by
SIGHUP/SIGINT/SIGTERM, 138 saved and ended as SIGUSR1 asked."""


class RunCommand(click.Command):
    """A command whose ``--dry-run`` may have ``=nodes`` behind it; words after TARGET are never touched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn ``--dry-run=nodes`` before TARGET into the hidden flag that click can read."""
        end = self._find_target(args)
        words = ["--dry-run-nodes" if word == "--dry-run=nodes" else word for word in args[:end]]
        return super().parse_args(ctx, words + args[end:])

    def _find_target(self, args: Sequence[str]) -> int:
        valued = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag and not param.count
            for name in param.opts
        }
        index = 0
        while index < len(args) and args[index].startswith("-") and args[index] not in ("-", "--"):
            index += 2 if args[index] in valued else 1
        return min(index, len(args))


Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def refuse_empty_value(context: click.Context, param: click.Parameter, value: Any) -> Any:
    """An option with an empty value, as of a variable of the shell that is not set, is a mistake and no default."""
    if isinstance(value, str) and not value.strip():
        raise click.BadParameter("is empty", context, param)
    return value


def shared_options(*groups: Sequence[Decorator]) -> Decorator:
    """Apply groups of options, in the order of the help page."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed([option for group in groups for option in group]):
            function = option(function)
        return function

    return decorate


HOST_OPTIONS: Sequence[Decorator] = (
    click.option(
        "--hosts",
        "hosts_file",
        metavar="FILE",
        help="Hostfile. Without it: the nodes of the Slurm job, else this machine.",
    ),
    click.option(
        "--nproc",
        "--nproc-per-node",
        "ranks_per_host",
        type=click.IntRange(min=1),
        metavar="N",
        help="Ranks on hosts whose line has no slots=; default: one a card.",
    ),
)

REMOTE_OPTIONS: Sequence[Decorator] = (
    click.option(
        "--transport",
        type=click.Choice(["auto", "ssh", "openssh", "srun"]),
        default="auto",
        show_default=True,
        help="auto: srun inside a Slurm job, else ssh; openssh: the system's ssh, for authentication only it knows.",
    ),
    click.option("--accept-new-host-keys", is_flag=True, help="Add unknown host keys to known_hosts."),
    click.option(
        "--connect-timeout",
        type=click.FloatRange(min=1),
        default=10.0,
        show_default=True,
        metavar="S",
        help="Seconds for one attempt to connect.",
    ),
    click.option(
        "--fanout",
        type=click.IntRange(min=1),
        default=64,
        show_default=True,
        metavar="N",
        help="Connections opened at a time.",
    ),
)

ENV_OPTIONS: Sequence[Decorator] = (
    click.option(
        "--env",
        "env_options",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Variable for all ranks; NAME alone copies it, NAME+=VALUE prepends, NAME- unsets.",
    ),
    click.option("--env-file", "env_files", multiple=True, metavar="FILE", help="File of NAME=VALUE lines."),
    click.option(
        "--setup",
        multiple=True,
        metavar="STEP",
        help="Set-up before the ranks: FILE, module:NAME, conda:NAME or venv:DIR; "
        "default /opt/dtk/env.sh where it exists.",
    ),
)
