"""Entry of a recipe's ranks: orders in, a trained adapter or model out. Runs as each rank of each node.

Two ways in: with DCU_LAUNCH_CHANNEL, orders and events are JSON lines over that socket; without it,

    python -m launcher.train --config recipe.json --run-dir DIR

reads the recipe from a file and prints. torchrun's variables say which rank this is; without them it is the only one.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe, config_hash, from_dict
from launcher.base.errors import LauncherError, UsageError
from launcher.train.channel import Channel
from launcher.train.model import check_paths
from launcher.train.stop import STOPPED_CODE, StopFlag
from launcher.train.world import (
    World,
    describe_rank,
    join_world,
    leave_world,
    pick_device,
    read_world,
    write_error,
)


@dataclass(frozen=True, slots=True)
class Order:
    """What this rank has to do."""

    recipe: Recipe
    config_hash: str
    run_dir: Path
    run: str
    attempt: int


def main(argv: list[str] | None = None) -> int:
    """Train as one rank; the exit code: 0 done, 2 a mistake of the user's, 143 ended early after a save."""
    stop = StopFlag().install()
    channel = Channel.from_environment()
    try:
        world = read_world(os.environ)
        order = read_order(channel, argv)
        _check_early(order, world)
        return _run(order, world, channel, stop)
    except LauncherError as error:
        write_error(error)
        return error.exit_code


def read_order(channel: Channel, argv: list[str] | None) -> Order:
    """The order from the agent, or from the command line."""
    if channel.has_agent:
        given = channel.receive("recipe")
        found = config_hash(given["config"])
        if found != given["config_hash"]:
            raise UsageError(
                f"the recipe changed on its way: hash {given['config_hash'][:12]} became {found[:12]}"
            )
        run_dir, run, attempt = Path(given["run_dir"]), str(given["run"]), int(given["attempt"])
        return Order(from_dict(given["config"]), found, run_dir, run, attempt)
    parser = argparse.ArgumentParser(prog="python -m launcher.train", description="Train as one rank.")
    parser.add_argument("--config", required=True, type=Path, help="recipe as JSON, fully resolved")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder for metrics, checkpoints, result")
    options = parser.parse_args(argv)
    try:
        config = json.loads(options.config.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{options.config}: {error}") from error
    run_dir = options.run_dir.absolute()
    return Order(from_dict(config), config_hash(config), run_dir, run_dir.name, 0)


def _check_early(order: Order, world: World) -> None:
    """Find wrong paths before seconds of imports; the first rank of a node tells, the others give it time to."""
    try:
        check_paths(order.recipe)
    except LauncherError:
        if world.local_rank > 0:
            time.sleep(2)
        raise


def _run(order: Order, world: World, channel: Channel, stop: StopFlag) -> int:
    device = pick_device(world)
    channel.send("rank_ready", describe_rank(world, device))
    import_stack()
    if channel.has_agent:
        channel.receive("go")
    join_world(world, device)
    try:
        from launcher.train.job import run_job

        ended = run_job(order, world, device, channel, stop)
    finally:
        if sys.exc_info()[0] is None:  # after a failure the others may be gone, and this would wait for them
            leave_world()
    return 0 if ended else STOPPED_CODE


def import_stack() -> None:
    """Import what ranks need, in one place: a process that forks ranks does it once for all of them."""
    import torch  # noqa: F401, I001
    import accelerate  # noqa: F401
    import transformers
    import peft  # noqa: F401

    # what will be renamed some day is for developers; told by each of many ranks it hides what matters
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def versions() -> dict[str, Any]:
    """Versions that a manifest records."""
    import accelerate
    import peft
    import torch
    import transformers

    stack = {m.__name__: str(m.__version__) for m in (torch, transformers, peft, accelerate)}
    return {"python": sys.version.split()[0], **stack}
