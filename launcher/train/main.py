"""Entry of a recipe's ranks: orders in, a trained adapter or model out. Runs as each rank of each node.

Two ways in: with DCU_LAUNCH_CHANNEL, orders and events are JSON lines over that socket; without it,

    python -m launcher.train --config recipe.json --run-dir DIR

reads the recipe from a file and prints. torchrun's variables say which rank this is; without them it is the only one.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
import warnings

from launcher.base.errors import LauncherError
from launcher.train.channel import Channel
from launcher.train.model import check_paths
from launcher.train.order import Order, read_order
from launcher.train.stop import STOPPED_CODE, StopFlag
from launcher.train.torch_facts import rank_facts
from launcher.train.trackers import leave_if_stuck
from launcher.train.world import (
    World,
    join_world,
    leave_world,
    pick_device,
    read_world,
    write_error,
)


def main(argv: list[str] | None = None) -> int:
    """Train as one rank; the exit code: 0 done, 2 a mistake of the user's, 143 ended early after a save."""
    stop = StopFlag().install()
    channel = Channel.from_environment()
    try:
        world = read_world(os.environ)
        order = read_order(channel, argv)
        _check_early(order, world)
        code = _run(order, world, channel, stop)
    except LauncherError as error:
        write_error(error)
        code = error.exit_code
    except Exception:
        leave_if_stuck(1, traceback.format_exc)
        raise
    leave_if_stuck(code)
    return code


def _check_early(order: Order, world: World) -> None:
    """Find wrong paths before seconds of imports; the first rank of a node tells, the others give it time to."""
    try:
        check_paths(order.recipe)
    except LauncherError:
        if world.local_rank > 0:
            time.sleep(2)
        raise


def _run(order: Order, world: World, channel: Channel, stop: StopFlag) -> int:
    may_go = not channel.has_agent or _tell_torch(world, channel)
    device = pick_device(world)
    import_stack()
    if not may_go:
        channel.receive("go")
    join_world(world, device)
    try:
        from launcher.train.job import run_job

        ended = run_job(order, world, device, channel, stop)
    finally:
        if sys.exc_info()[0] is None:  # after a failure the others may be gone, and this would wait for them
            leave_world()
    return 0 if ended else STOPPED_CODE


def _tell_torch(world: World, channel: Channel) -> bool:
    """The torch half of the checks before the start: versions, the RCCL in memory, this rank's card, one operation on it.

    After an error this rank waits at once: the launcher hears all ranks, and then refuses, or lets it pass.

    Returns:
        Whether the word to go on has been heard.
    """
    facts = rank_facts(world.local_rank, lambda known: channel.send("rank_torch", known))
    channel.send("rank_ready", {"pid": os.getpid(), "python": sys.version.split()[0], **facts})
    if "error" not in facts:
        return False
    channel.receive("go")
    return True


#: what tells, without asking a card, that there may be one
CARD_FILES = ("/dev/kfd", "/dev/mkfd", "/dev/nvidiactl")


def import_stack() -> None:
    """Import what ranks need, in one place: a process that forks ranks does it once for all of them."""
    if not any(map(os.path.exists, CARD_FILES)):
        # where DeepSpeed is installed, peft and accelerate load it, and it would say so on stdout
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch._dynamo  # noqa: F401, I001  # the first optimizer loads it, 1.5 s; newer transformers do it here anyway
    import accelerate  # noqa: F401
    import transformers
    import peft  # noqa: F401

    # what will be renamed some day is for developers; told by each of many ranks it hides what matters
    warnings.filterwarnings("ignore", category=FutureWarning)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
