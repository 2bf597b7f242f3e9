"""Bus bandwidth of all-reduce: over all ranks by size, inside each node, and between pairs of nodes, for ``check --comm``.

Runs in every rank, after a first all-reduce was right. Bandwidth is counted as rccl-tests does: 2 (n - 1) / n of size / time.
Each node is paired with its neighbours in a ring, all pairs of a round at the same time: whoever is slow with both
neighbours is the slow one, in two rounds (three, where nodes are odd) however many nodes there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

#: so long a size is repeated, and at most so often
ROUND_S, MAX_ROUNDS = 0.5, 20
Pair = tuple[int, int]


def measure(order: dict[str, Any], rank: int, device: Any, backend: str, say: Callable[..., None]) -> None:
    """Measure and say it, each figure once: by rank 0, by each node's first rank, by the first rank of a pair.

    Args:
        order: ``sizes`` and ``group_bytes`` in bytes, ``node_firsts``, ``world_size``.
    """
    import torch.distributed as dist

    firsts, world = order["node_firsts"], order["world_size"]
    for size in order["sizes"]:
        seconds = time_all_reduce(size, device)
        if rank == 0:
            found = {"bytes": size, "seconds": seconds, "bus_gb_s": bus_gb_s(world, size, seconds)}
            say(bandwidth={**found, "backend": backend})
    if len(firsts) == 1:
        return
    members = [list(range(first, end)) for first, end in zip(firsts, [*firsts[1:], world], strict=True)]
    size = order["group_bytes"]

    def measure_groups(groups: Sequence[tuple[Sequence[int], dict[str, Any]]]) -> None:
        # a group is made by all ranks, also by those that are not in it
        made = [(ranks, told, dist.new_group(list(ranks))) for ranks, told in groups]
        for ranks, told, group in made:
            if rank in ranks:
                figure = bus_gb_s(len(ranks), size, time_all_reduce(size, device, group))
                if rank == ranks[0]:
                    say(**{key: {**value, "bus_gb_s": figure} for key, value in told.items()})
        dist.barrier()

    several = [
        (ranks, {"node_bandwidth": {"node": node}}) for node, ranks in enumerate(members) if len(ranks) > 1
    ]
    if several:
        measure_groups(several)
    for pairs in pair_rounds(len(members)):
        measure_groups([(members[a] + members[b], {"pair_bandwidth": {"nodes": [a, b]}}) for a, b in pairs])


def pair_rounds(count: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs of neighbours in a ring; none of fewer than three, since two are what is measured anyway."""
    if count < 3:
        return []
    even = [(node, node + 1) for node in range(0, count - 1, 2)]
    odd = [(node, node + 1) for node in range(1, count - 1, 2)]
    last = (count - 1, 0)
    return [even, odd, [last]] if count % 2 else [even, [*odd, last]]


def bus_gb_s(ranks: int, size: int, seconds: float) -> float:
    """Bus bandwidth in GB/s."""
    return 2 * (ranks - 1) / ranks * size / seconds / 1e9


def time_all_reduce(size: int, device: Any, group: Any = None) -> float:
    """Seconds of one all-reduce of so many bytes: the mean of several after two to warm up."""
    import torch
    import torch.distributed as dist

    numbers = torch.ones(max(1, size // 4), device=device)

    def run(times: int) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(times):
            dist.all_reduce(numbers, group=group)
            numbers.fill_(1.0)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    run(1)
    # all ranks repeat it equally often
    slowest = torch.tensor([run(1)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=group)
    return run(max(1, min(MAX_ROUNDS, int(ROUND_S / max(float(slowest), 1e-6)))))
