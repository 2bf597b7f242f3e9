"""Which row goes to which rank, micro-batch and sequence: pure functions of lengths, the same on every rank.

No rank asks another: all know all lengths, so that each computes the whole plan of a step and takes its part.
The order of rows depends on seed and epoch alone, what a step holds on the global batch size: the number of ranks
changes only who computes a row.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

#: rows of one sequence, by number; a micro-batch is a list of them
Sequence_ = list[int]
MicroBatch = list[Sequence_]


@dataclass(frozen=True, slots=True)
class PackLimits:
    """What a card takes at once.

    Attributes:
        max_tokens: tokens of a micro-batch, padding included.
        sequence_length: tokens of one packed sequence.
        packing: whether a sequence holds more than one row.
    """

    max_tokens: int
    sequence_length: int
    packing: bool = True


@functools.lru_cache(maxsize=2)  # asked for at each step
def order_rows(num_rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order of one pass over the rows."""
    order = list(range(num_rows))
    random.Random(f"{seed}/{epoch}").shuffle(order)  # noqa: S311  # an order of rows is no secret
    return tuple(order)


def split_rows(num_rows: int, fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Numbers of the rows to train on and of those held back, drawn by the seed, each in the order of the file."""
    held = set(random.Random(f"{seed}/split").sample(range(num_rows), int(num_rows * fraction)))  # noqa: S311
    return [i for i in range(num_rows) if i not in held], sorted(held)


def steps_per_epoch(num_rows: int, global_batch_size: int) -> int:
    """Steps of one pass; the last may be smaller, so that each row counts once."""
    return math.ceil(num_rows / global_batch_size)


def rows_of_step(step: int, num_rows: int, global_batch_size: int, seed: int) -> list[int]:
    """The rows of a step (1 is the first), over all ranks."""
    epoch, place = divmod(step - 1, steps_per_epoch(num_rows, global_batch_size))
    start = place * global_batch_size
    return list(order_rows(num_rows, seed, epoch)[start : start + global_batch_size])


def share_rows(rows: Sequence[int], lengths: Sequence[int], num_ranks: int) -> list[list[int]]:
    """Share rows so that ranks have about as many tokens: the longest first, each to who has least."""
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        least = min(range(num_ranks), key=lambda rank: (loads[rank], len(shares[rank]), rank))
        shares[least].append(row)
        loads[least] += lengths[row]
    return shares


def pack_rows(rows: Sequence[int], lengths: Sequence[int], limits: PackLimits) -> list[MicroBatch]:
    """Put rows into sequences and sequences into micro-batches, within the limits."""
    ordered = sorted(rows, key=lambda r: (-lengths[r], r))
    if not limits.packing:
        return _group_rows(ordered, lengths, limits.max_tokens)
    sequences: list[Sequence_] = []
    room: list[int] = []
    for row in ordered:
        fitting = (i for i, left in enumerate(room) if left >= lengths[row])
        index = next(fitting, -1)
        if index < 0:
            sequences.append([])
            room.append(limits.sequence_length)
        sequences[index].append(row)
        room[index] -= lengths[row]
    height = max(1, limits.max_tokens // limits.sequence_length)
    return [sequences[i : i + height] for i in range(0, len(sequences), height)]


def _group_rows(ordered: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[MicroBatch]:
    """One row a sequence; rows of like length stand together, so that little is padded."""
    batches: list[MicroBatch] = []
    for row in ordered:
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0][0]] > max_tokens:
            batches.append([])
        batches[-1].append([row])
    return batches


def plan_step(
    rows: Sequence[int], lengths: Sequence[int], num_ranks: int, limits: PackLimits
) -> list[list[MicroBatch]]:
    """Micro-batches of each rank for the rows of a step; every rank gets the same number, empty ones at the end."""
    plans = [pack_rows(share, lengths, limits) for share in share_rows(rows, lengths, num_ranks)]
    count = max(1, *(len(plan) for plan in plans))
    return [plan + [[] for _ in range(count - len(plan))] for plan in plans]
