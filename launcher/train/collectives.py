"""A correct all-reduce over all ranks within a limit, then its bandwidth: for ``dcu-launch check --comm``.

Runs on a node: one process imports torch and forks this node's ranks, which report each stage they reach; when the limit
is over, the ranks are ended and what they reached is told, so that whoever did not come is named. Facts are marked lines.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from launcher.train.bandwidth import measure
from launcher.train.torch_facts import tell

#: the stages of a rank, in order
STAGES = ("start", "here", "reach", "group", "reduced", "done")
REACH_LIMIT_S = 4.0
#: ranks that wait in vain are given the time to say so
SLACK_S = 2.0
#: what in a log of RCCL says which way it went, or why it did not
LOG_LINES = re.compile(
    r"WARN|Using network|via NET/|GPU Direct RDMA|NET/\w+ : ?Using|GDRDMA|version", re.IGNORECASE
)
Order = dict[str, Any]


def main(argv: Sequence[str]) -> int:
    """Start this node's ranks, tell what they reach, end them when their time is over."""
    order: Order = json.loads(argv[0])
    import torch  # once, before the forks

    tell(imported=torch.__version__)
    logs = Path(tempfile.mkdtemp(prefix="dcu-comm-"))
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_FILE", str(logs / "%h.%p.log"))
    reading, writing = os.pipe()
    children = [_fork_rank(order, local_rank, reading, writing) for local_rank in range(order["local_size"])]
    os.close(writing)
    try:
        _relay(order, reading)
    finally:
        # who has ended is a zombie until it is waited for, so that no pid can mean another process
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        tell(log=_take_logs(logs))
    return 0


def _fork_rank(order: Order, local_rank: int, reading: int, writing: int) -> int:
    child = os.fork()
    if child:
        return child
    os.close(reading)
    # the agent waits for the end of our output, which a rank that hangs must not hold
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (1, 2):
        os.dup2(null, standard)
    os._exit(_run_rank(order, local_rank, writing))


def _take_logs(folder: Path) -> list[str]:
    """The lines that matter of RCCL's logs, warnings first; the folder is removed."""
    texts = [path.read_text(errors="replace") for path in sorted(folder.iterdir())]
    lines = [line[-200:] for text in texts for line in text.split("\n") if LOG_LINES.search(line)]
    shutil.rmtree(folder, ignore_errors=True)
    return sorted(lines, key=lambda line: "WARN" not in line)[:20]


def _relay(order: Order, reading: int) -> None:
    """Tell what ranks write until the last has ended or their time is over."""
    data = b""
    deadline = time.monotonic() + order["start_limit"] + SLACK_S
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return
        piece = os.read(reading, 65536)
        if not piece:
            return
        *lines, data = (data + piece).split(b"\n")
        for line in lines:
            fact = json.loads(line)
            tell(rank=fact)
            if "all_here" in fact or fact.get("stage") == "reduced":
                # from now on it is the collective's time, or that of the measurement
                limit = order["limit"] if "all_here" in fact else order["bandwidth_limit"]
                deadline = time.monotonic() + limit + SLACK_S


def _run_rank(order: Order, local_rank: int, writing: int) -> int:
    rank = order["first_rank"] + local_rank
    stage = "start"

    def say(**facts: Any) -> None:
        os.write(writing, json.dumps({"rank": rank, **facts}).encode() + b"\n")

    try:
        say(stage=stage)
        for stage in _stages(order, rank, local_rank, say):
            say(stage=stage)
        return 0
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".strip().split("\n")[0]
        say(failed=text[:300], at=stage, log=_own_address_hint(error))
        return 1


def _own_address_hint(error: BaseException) -> str:
    name = os.environ.get("GLOO_SOCKET_IFNAME", "")
    return f"GLOO_SOCKET_IFNAME={name}" if name and "address" in str(error) else ""


def _stages(order: Order, rank: int, local_rank: int, say: Any) -> Any:
    """The work of a rank; yields each stage after ``start`` when it is reached."""
    import torch
    import torch.distributed as dist

    world, limit = order["world_size"], timedelta(seconds=order["limit"])
    store = dist.TCPStore(
        order["address"],
        order["port"],
        world,
        rank == 0,
        timedelta(seconds=order["start_limit"]),
        wait_for_workers=False,
    )
    listening = socket.create_server(("", 0)) if local_rank == 0 else None
    own = f"{order['own_address']} {listening.getsockname()[1]}" if listening else ""
    store.set(f"here/{rank}", own or "-")
    store.wait([f"here/{each}" for each in range(world)], timedelta(seconds=order["start_limit"]))
    say(all_here=True)
    yield "here"
    if listening is not None:
        say(unreached=_try_others(store, order, rank))
    yield "reach"
    on_cards = torch.cuda.is_available() and torch.cuda.device_count() >= order["local_size"]
    device = torch.device("cuda", local_rank) if on_cards else torch.device("cpu")
    if on_cards:
        torch.cuda.set_device(device)
    store.set_timeout(limit)
    backend = "nccl" if on_cards else "gloo"
    dist.init_process_group(
        backend, store=dist.PrefixStore("comm", store), rank=rank, world_size=world, timeout=limit
    )
    yield "group"
    numbers = torch.full((1024,), float(rank + 1), device=device)
    dist.all_reduce(numbers)
    total, expected = float(numbers[0]), world * (world + 1) / 2
    if total != expected or float(numbers.min()) != total:
        raise ArithmeticError(f"the sum over ranks is {total:g} instead of {expected:g}")
    yield "reduced"
    measure(order, rank, device, backend, say)
    store.set(f"done/{rank}", "x")
    if rank == 0:  # it hosts the store: whoever is still to say that it is done must find it
        store.wait([f"done/{each}" for each in range(world)], limit)
    yield "done"


def _try_others(store: Any, order: Order, rank: int) -> list[list[Any]]:
    """First ranks of other nodes whose address this one does not reach, with the reason."""
    failed = []
    for other in order["node_firsts"]:
        if other == rank:
            continue
        address, _, port = store.get(f"here/{other}").decode().partition(" ")
        try:
            socket.create_connection((address, int(port)), timeout=REACH_LIMIT_S).close()
        except OSError as error:
            failed.append([other, address, error.strerror or str(error)])
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
