"""Which row goes to which rank, micro-batch and sequence: pure functions of lengths, the same on every rank.

No rank asks another: all know all lengths, so that each computes the whole plan of a step and takes its part.
The order of rows depends on seed and epoch alone, what a step holds on the global batch size: the number of ranks
changes only who computes a row.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

#: padding of packed sequences may exceed the tokens of a micro-batch by one part in this many
SPARE = 16
#: from this padding unit on, lengths count as static: sequences are filled one after another
STATIC_UNIT = 64
#: rows of one sequence, by number; a micro-batch is a list of them
Sequence_ = list[int]
MicroBatch = list[Sequence_]


@dataclass(frozen=True, slots=True)
class PackLimits:
    """What a card takes at once.

    Attributes:
        max_tokens: tokens of a micro-batch; padding may add a sixteenth.
        sequence_length: tokens of one packed sequence.
        packing: whether a sequence holds more than one row.
        unit: lengths of sequences are padded to a multiple of this.
        longest: under a varlen kernel the longest row there is; 0: attention by mask.
    """

    max_tokens: int
    sequence_length: int
    packing: bool = True
    unit: int = 1
    longest: int = 0


def round_up(number: int, unit: int) -> int:
    """The next multiple of ``unit``."""
    return -(-number // unit) * unit


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
    queue = [(0, 0, rank) for rank in range(num_ranks)]  # tokens, rows, rank; a heap as it stands
    for row in sorted(rows, key=lambda r: (-lengths[r], r)):
        load, count, rank = queue[0]
        shares[rank].append(row)
        heapq.heapreplace(queue, (load + lengths[row], count + 1, rank))
    return shares


def pack_rows(rows: Sequence[int], lengths: Sequence[int], limits: PackLimits) -> list[MicroBatch]:
    """Put rows into sequences and sequences into micro-batches, within the limits."""
    ordered = sorted(rows, key=lambda r: (-lengths[r], r))
    if not limits.packing:
        return _group_rows(ordered, lengths, limits.max_tokens)
    if not ordered:
        return []
    fill = _fill_evenly if limits.unit < STATIC_UNIT else _fill_first
    sequences = fill(ordered, lengths, limits.sequence_length)
    longest = max(sum(lengths[row] for row in sequence) for sequence in sequences)
    # by what sequences are, not by what they may be; rows that fill a pack are not torn apart by a little padding
    height = max(1, (limits.max_tokens + limits.max_tokens // SPARE) // round_up(longest, limits.unit))
    count = math.ceil(len(sequences) / height)
    return [sequences[i::count] for i in range(count)]


def _fill_evenly(ordered: Sequence[int], lengths: Sequence[int], room: int) -> list[Sequence_]:
    """As few sequences as hold the rows, of about equal length: all are padded to the longest of them."""
    total = sum(lengths[row] for row in ordered)
    for count in range(math.ceil(total / room), len(ordered)):
        shares = share_rows(ordered, lengths, count)
        if max(sum(lengths[row] for row in share) for share in shares) <= room:
            return shares
    return [[row] for row in ordered]


def _fill_first(ordered: Sequence[int], lengths: Sequence[int], room: int) -> list[Sequence_]:
    """Each row into the first sequence that has room: all but the last are full, as static lengths want them."""
    sequences: list[Sequence_] = []
    left: list[int] = []
    for row in ordered:
        index = next((i for i, rest in enumerate(left) if rest >= lengths[row]), -1)
        if index < 0:
            sequences.append([])
            left.append(room)
        sequences[index].append(row)
        left[index] -= lengths[row]
    return sequences


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
