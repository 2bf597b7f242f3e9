"""``dcu-launch [options] [TARGET] [ARGS...]``: from a hostfile to ranks that ended, in the order of the design."""

from __future__ import annotations

from typing import Any

import click

from launcher.commands.options import (
    ENV_OPTIONS,
    HOST_OPTIONS,
    REMOTE_OPTIONS,
    VERB_HELP,
    RunCommand,
    refuse_empty_value,
    shared_options,
)


@click.command(
    cls=RunCommand,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog=VERB_HELP,
)
@shared_options(HOST_OPTIONS)
@click.option("-m", "as_module", is_flag=True, help="TARGET is a module, as in python -m.")
@click.option(
    "--run-dir", metavar="DIR", callback=refuse_empty_value, help="Run folder; default runs/<time>-<recipe>."
)
@click.option(
    "--name", metavar="NAME", callback=refuse_empty_value, help="Last part of the run folder's name."
)
@click.option(
    "--workdir", metavar="DIR", help="Working folder of the ranks on every node; default: this one."
)
@click.option(
    "--sync",
    metavar="DIR",
    help="Bring this folder to nodes that do not see it, to the same path or to --workdir; .dcuignore leaves files out.",
)
@click.option(
    "--python",
    metavar="PATH",
    callback=refuse_empty_value,
    help="Interpreter of the ranks; default: the one of dcu-launch, if a node has it.",
)
@shared_options(ENV_OPTIONS)
@click.option("--deepspeed", metavar="FILE", help="Scripts: train by DeepSpeed, set up by this JSON file.")
@click.option(
    "--accelerate-config",
    metavar="FILE",
    help="Scripts: what accelerate launch would set for this file, apart from where processes run.",
)
@click.option(
    "--local-rank-arg", "local_rank_argument", is_flag=True, help="Scripts: append --local_rank=N to ARGS."
)
@click.option(
    "--master-addr", "master_address", metavar="ADDR", help="Address of the first node for the others."
)
@click.option("--master-port", type=click.IntRange(1, 65535), metavar="PORT", help="Default: a free one.")
@click.option(
    "--bind",
    type=click.Choice(["none", "numa"]),
    default="none",
    show_default=True,
    help="numa: each rank stays on the NUMA node of its card, as the node itself tells it.",
)
@click.option(
    "--smoke",
    is_flag=True,
    help="Recipes: 20 steps on a few dozen rows, then a verdict on loss, step time and checkpoint; exit code 0 or 1.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Go on in the background once all ranks are started; see ps, logs, attach, stop, save.",
)
@click.option("--plain", is_flag=True, help="Lines alone, without the live view at the foot of the terminal.")
@click.option(
    "--gauges",
    "gauges_every",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds between looks at the cards by hy-smi or nvidia-smi; 0: never.",
)
@click.option("--ranks", "shown_ranks", metavar="LIST", help="Show only these ranks' output, such as 0,8-11.")
@click.option(
    "--start-timeout",
    type=click.FloatRange(min=1),
    default=600.0,
    show_default=True,
    metavar="S",
    help="Seconds until all ranks have joined.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="S",
    help="Seconds between TERM and KILL when asked to stop.",
)
@click.option(
    "--save-grace",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Seconds between SIGUSR1, which asks to save and end, and KILL.",
)
@click.option(
    "--lost-after",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Seconds of silence after which a node, or the head, is lost.",
)
@click.option(
    "--start",
    type=click.Choice(["auto", "spawn", "fork"]),
    default="auto",
    show_default=True,
    help="fork: import the training stack once a node and fork the ranks; auto: recipes on nodes without cards.",
)
@click.option(
    "--no-torch-check",
    "no_torch_check",
    is_flag=True,
    help="Do not look at torch on the nodes: recipes' ranks do it themselves, a process beside those of scripts.",
)
@click.option("--allow", "allowed", multiple=True, metavar="CODE", help="Let a finding of preflight pass.")
@click.option(
    "--compat", multiple=True, metavar="FILE", help="A site's own compatibility table (docs/findings.md)."
)
@shared_options(REMOTE_OPTIONS)
@click.option(
    "--dry-run", is_flag=True, help="Print the plan; =nodes asks the nodes and prints the very plan of a run."
)
@click.option("--dry-run-nodes", is_flag=True, hidden=True)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[TARGET] [ARGS]...")
def run(**options: Any) -> int:
    """From one DCU to many: start TARGET on every host of the hostfile.

    TARGET is a recipe (*.yaml; ARGS are key=value), a script (*.py) or, with -m, a module (ARGS reach every rank byte
    for byte). Without TARGET: dcu-launch.yaml of this folder, else a built-in demo that needs no download.
    """
    from launcher.commands.pipeline import run_pipeline

    return run_pipeline(options)
