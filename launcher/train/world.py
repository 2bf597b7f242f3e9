"""Where this rank stands among all: torchrun's variables -> World, and the few exchanges between ranks.

Runs in every rank. Without a process group (one rank started by hand) every exchange answers itself.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from launcher.base.errors import LauncherError, UsageError

T = TypeVar("T")

#: the first collectives wait for the slowest node's model to be read
JOIN_TIMEOUT = timedelta(minutes=30)
#: before the process group is taken down
GLOO_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class World:
    """This rank's place.

    Attributes:
        has_group: whether torchrun's variables are there, so that a process group is made.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    has_group: bool = False

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files and metrics."""
        return self.rank == 0


def read_world(environ: Mapping[str, str]) -> World:
    """The place that torchrun's variables give; raises UsageError when some are missing or wrong."""
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return World()
    missing = [n for n in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if not environ.get(n)]
    if missing:
        raise UsageError(
            f"variables {', '.join(missing)} are not set, others of the launcher are",
            "start ranks with dcu-launch or torchrun, or unset RANK and WORLD_SIZE",
        )
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    local_rank = int(environ.get("LOCAL_RANK", rank))
    return World(rank, size, local_rank, int(environ.get("LOCAL_WORLD_SIZE", size)), has_group=True)


def pick_device(world: World) -> Any:
    """The torch device of this rank; raises UsageError when the node shows fewer cards than ranks."""
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise UsageError(
            f"rank {world.rank} has local rank {world.local_rank}, but this node shows "
            f"{torch.cuda.device_count()} cards",
            "slots= in the hostfile, or HIP_VISIBLE_DEVICES on that node",
        )
    return torch.device("cuda", world.local_rank)


def join_world(world: World, device: Any) -> None:
    """Make the process group: gloo on CPUs, nccl (RCCL on DCU) on cards."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world.has_group:
        backend = "nccl" if device.type == "cuda" else "gloo"
        torch.distributed.init_process_group(
            backend, rank=world.rank, world_size=world.size, timeout=JOIN_TIMEOUT
        )


def leave_world() -> None:
    """Take the process group down, if there is one."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        if torch.distributed.get_backend() == "gloo":
            # gloo's thread may still want the interpreter, to let go of the last tensors; torch 2.4 waits for that thread
            # and lets no other run meanwhile: one run in three hung here
            time.sleep(GLOO_PAUSE_S)
        torch.distributed.destroy_process_group()


def gather_floats(values: list[float], device: Any) -> list[list[float]]:
    """The values of all ranks, by rank; the same on every rank."""
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [values]
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    everyone = [torch.empty_like(mine) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everyone, mine)
    return [row.tolist() for row in everyone]


def broadcast(tensor: Any) -> None:
    """Fill the tensor with rank 0's values, on every rank."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast(tensor, src=0)


def fingerprint(text: str) -> float:
    """A number for a text that survives a float64: equal texts have equal numbers."""
    return float(int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big"))


def agree(work: Callable[[], T], device: Any) -> T:
    """Do work that may find a user's mistake; if any rank finds one, all end, and each mistake is told once.

    Raises:
        LauncherError: this rank's own mistake, told or not, or that another rank found one.
    """
    error: LauncherError | None = None
    result: T | None = None
    try:
        result = work()
    except LauncherError as found:
        error = found
    mark = fingerprint(f"{error.message}\n{error.hint}") + 1 if error else 0.0
    marks = [row[0] for row in gather_floats([mark], device)]
    if not any(marks):
        return result  # type: ignore[return-value]
    import torch

    rank = torch.distributed.get_rank() if len(marks) > 1 else 0
    if error is None or marks.index(mark) != rank:
        raise AlreadyToldError("another rank tells the mistake")
    raise error


class AlreadyToldError(UsageError):
    """A mistake that another rank tells: this one ends without a word."""


def write_error(error: LauncherError) -> None:
    """Tell a mistake on stderr as the launcher does: what and where, then the cure."""
    if isinstance(error, AlreadyToldError):
        return
    lines = [f"dcu-launch: error: {line}" for line in error.message.split("\n")]
    lines += [f"  hint: {error.hint}"] if error.hint else []
    sys.stderr.write("\n".join(lines) + "\n")
    sys.stderr.flush()
