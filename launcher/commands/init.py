"""``dcu-launch init``: a starter recipe, hostfile and batch script for this cluster. Runs on the head; contacts no node."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

import click

from launcher.base.errors import LauncherError, UsageError
from launcher.base.shipped import read_shipped, shipped_recipes

if TYPE_CHECKING:
    from launcher.slurm.cluster import Cluster


LIST_WIDTH = 100


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("folder", default=".", metavar="[DIR]")
@click.option(
    "--recipe",
    default="lora",
    show_default=True,
    metavar="NAME",
    help="Which one to start from; --list shows them.",
)
@click.option(
    "--model", default="", metavar="MODEL", help="For model.path: a model folder, a name on the hub, or demo."
)
@click.option(
    "--data", default="", metavar="FILE", help="For data.path: a file of rows, a folder of them, or demo."
)
@click.option("--force", is_flag=True, help="Overwrite files that are there.")
@click.option("--list", "lists", is_flag=True, help="Print the recipes there are, and write nothing.")
def init(folder: str, recipe: str, model: str, data: str, force: bool, lists: bool) -> None:
    """Write dcu-launch.yaml, hosts.txt and, where there is Slurm, train.sbatch into DIR (default: this folder).

    Nodes, cards and partition come from sinfo, or from this machine's cards. No node is contacted, and nothing is overwritten
    without --force.
    """
    if lists:
        click.echo(list_recipes(), nl=False)
        return
    write_starter(Path(folder), read_shipped(recipe), model, data, force)


def list_recipes() -> str:
    """Name and first sentence of each shipped recipe."""
    lines = []
    for name, file in shipped_recipes().items():
        comments = [
            line[1:].strip() for line in file.read_text(encoding="utf-8").split("\n") if line.startswith("#")
        ]
        said = " ".join(line for line in comments[1:] if line)
        first = said.partition(". ")[0].rstrip(".")
        lines.append(fill(first, LIST_WIDTH, initial_indent=f"{name:14} ", subsequent_indent=15 * " ") + "\n")
    return "".join(lines)


def write_starter(folder: Path, recipe: str, model: str, data: str, force: bool) -> None:
    """Write the files and say what comes next.

    Raises:
        UsageError: files are there already, or cannot be written.
    """
    from launcher.commands.starter import (
        HOSTS_FILE,
        RECIPE_FILE,
        SCRIPT_FILE,
        fill_recipe,
        write_batch_script,
        write_hostfile,
    )  # fmt: skip
    from launcher.slurm.cluster import read_cluster

    cluster = read_cluster()
    names = (RECIPE_FILE, HOSTS_FILE, *([SCRIPT_FILE] if cluster else []))
    there = [name for name in names if os.path.lexists(folder / name)]
    if there and not force:
        raise UsageError(
            f"{folder}: there already: {', '.join(there)}", "--force overwrites; or name another folder"
        )
    texts = {
        RECIPE_FILE: fill_recipe(recipe, _absolute(model), _absolute(data)),
        HOSTS_FILE: write_hostfile(cluster, None if cluster else count_local_cards()),
    }
    if cluster:
        texts[SCRIPT_FILE] = write_batch_script(cluster)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            aside = folder / f".{name}.partial"
            aside.write_text(text, encoding="utf-8")
            os.replace(aside, folder / name)
    except OSError as error:
        raise UsageError(f"{error.filename or folder}: {error.strerror}") from None
    for name in texts:
        click.echo(f"dcu-launch: wrote {folder / name}")
    _tell_next(folder, not (model and data), cluster)


def _absolute(path: str) -> str:
    """A path that is there from the root: the recipe may be used from elsewhere."""
    whole = os.path.abspath(os.path.expanduser(path))
    return whole if path not in ("", "demo") and os.path.exists(whole) else path


def count_local_cards() -> int | None:
    """Cards of this machine, as its own probe sees them; None when that cannot be found out."""
    from launcher.commands.check import check, look_at_nodes, read_check_request

    options = check.make_context("check", ["--no-torch-check"]).params
    try:
        looked = look_at_nodes(read_check_request({**options, "hosts_file": None}), options)
    except LauncherError:
        return None
    cards: int | None = looked.reports[0].usable_cards
    return cards


def _tell_next(folder: Path, is_open: bool, cluster: Cluster | None) -> None:
    from launcher.commands.starter import HOSTS_FILE, RECIPE_FILE

    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    if is_open:
        click.echo(f"dcu-launch: first fill in {RECIPE_FILE}: model.path and data.path")
    if cluster:
        words = f"--partition {cluster.partition} " if not cluster.is_default else ""
        words += f"--cards {cluster.cards} --gres {cluster.gres}" if cluster.gres else "--gres none"
        click.echo(f"dcu-launch: try it: {go}dcu-launch submit {words} {RECIPE_FILE} train.max_steps=20")
        return
    click.echo(f"dcu-launch: see whether hosts fit: {go}dcu-launch check --hosts {HOSTS_FILE}")
    click.echo(f"dcu-launch: try it: {go}dcu-launch --hosts {HOSTS_FILE} train.max_steps=20")
