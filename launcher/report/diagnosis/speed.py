"""Rules on time: one rank or node slower than the others, cards that wait for data. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping

from launcher.report.diagnosis.measures import written
from launcher.report.diagnosis.verdict import Verdict
from launcher.report.run_record import RunRecord, number

#: the first steps hold compiling and first touches
SKIP_STEPS = 3
#: steps that must be there beyond those
LEAST_STEPS = 10
#: share of steps in which the same rank is the slowest; its time by the median rank's
SAME_SHARE, SLOW_RATIO = 0.8, 1.25
#: share of a step's time that goes into making batches
WAIT_SHARE = 0.2


def slow_rank(record: RunRecord) -> Verdict | None:
    """The same rank, or ranks of the same node, are nearly always the slowest, by more than chance makes them."""
    steps = []
    for row in record.metrics[SKIP_STEPS:]:
        rank = row.get("slowest_rank")
        slowest, median = number(row.get("slowest_step_s")), number(row.get("median_step_s"))
        if isinstance(rank, int) and slowest is not None and median:
            steps.append((rank, slowest / median))
    ranks = number(record.plan.get("world_size"))
    if len(steps) < LEAST_STEPS or (ranks is not None and ranks < 2):
        return None
    ratio = statistics.median(ratio for _, ratio in steps)
    if ratio < SLOW_RATIO:
        return None
    hosts = hosts_of_ranks(record.plan)
    rank, count = Counter(rank for rank, _ in steps).most_common(1)[0]
    host, on_host = Counter(hosts.get(rank, "") for rank, _ in steps).most_common(1)[0]
    share = count / len(steps)
    if share < SAME_SHARE:
        if not host or on_host / len(steps) < SAME_SHARE or len(set(hosts.values())) < 2:
            return None
        who, share = host, on_host / len(steps)
    else:
        who = f"rank {rank}" + (f" ({hosts[rank]})" if rank in hosts else "")
    return Verdict("SLOW_RANK", written(who=who, share=100 * share, ratio=ratio, steps=str(len(steps))))


def hosts_of_ranks(plan: Mapping[str, object]) -> dict[int, str]:
    """The host of each rank, as the plan says."""
    found: dict[int, str] = {}
    nodes = plan.get("nodes")
    for node in nodes if isinstance(nodes, list) else []:
        count = node.get("num_ranks") if isinstance(node, Mapping) else None
        if not isinstance(count, int) or count > 1024:
            return {}
        found.update(dict.fromkeys(range(len(found), len(found) + count), str(node.get("host"))))
    return found


def data_wait(record: RunRecord) -> Verdict | None:
    """Much of a step is spent on making its batches, while cards have nothing to do."""
    shares = []
    for row in record.metrics[SKIP_STEPS:]:
        wait, step = number(row.get("data_wait_s")), number(row.get("step_s"))
        if wait is not None and step:
            shares.append(wait / step)
    if len(shares) < LEAST_STEPS:
        return None
    share = statistics.median(shares)
    if share < WAIT_SHARE:
        return None
    return Verdict("DATA_WAIT", written(share=100 * share, steps=str(len(shares))))
