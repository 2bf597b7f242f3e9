"""``check --comm``: one process on each node that makes its ranks, and what they reached -> findings. Runs on the head."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.base.env import DCU_DEFAULTS
from launcher.commands.request import Request
from launcher.launch.nodes import Nodes
from launcher.launch.order import Meeting
from launcher.launch.plan import count_ranks
from launcher.preflight.finding import Finding
from launcher.preflight.report import NodeReport
from launcher.preflight.rules_bandwidth import judge_bandwidths
from launcher.preflight.rules_collectives import judge_collective

#: nodes may differ much in how long an import takes
START_SLACK_S = 30.0
BANDWIDTH_LIMIT_S = 60.0
IMPORT_LIMIT_S = 120.0
#: of RCCL's log, of each host of a finding
LOG_LINES = 4
SIZES = tuple(1 << power for power in range(10, 31, 2))
#: loopback and plain Ethernet are too slow for more
CPU_SIZES = tuple(1 << power for power in range(10, 23, 2))
#: inside nodes and between pairs of them
GROUP_BYTES, CPU_GROUP_BYTES = 1 << 28, 1 << 21


@dataclass(frozen=True, slots=True)
class Measured:
    """What ranks measured: bandwidths by size over all of them, inside nodes, between pairs of nodes; empty: nothing."""

    sizes: list[dict[str, Any]] = field(default_factory=list)
    inside: dict[str, float] = field(default_factory=dict)
    pairs: list[dict[str, Any]] = field(default_factory=list)


def run_collectives(
    nodes: Nodes, request: Request, reports: Sequence[NodeReport], meeting: Meeting, limit_s: float
) -> tuple[Measured, list[Finding]]:
    """Bandwidths, and findings where the ranks did not all come to the end, or a node is far slower than others."""
    counts = [
        int(count_ranks(request.spec, host, report))
        for host, report in zip(request.hosts, reports, strict=True)
    ]
    firsts = [sum(counts[:node]) for node in range(len(counts))]
    total_s = IMPORT_LIMIT_S + START_SLACK_S + 2 * limit_s + BANDWIDTH_LIMIT_S
    for node, report in enumerate(reports):
        order = {
            "address": meeting.address,
            "port": meeting.port,
            "own_address": own_address(report, meeting, node),
            "first_rank": firsts[node],
            "local_size": counts[node],
            "world_size": sum(counts),
            "node_firsts": firsts,
            "limit": limit_s,
            "start_limit": limit_s + START_SLACK_S,
            "bandwidth_limit": BANDWIDTH_LIMIT_S,
            "sizes": SIZES if report.card_count else CPU_SIZES,
            "group_bytes": GROUP_BYTES if report.card_count else CPU_GROUP_BYTES,
        }
        message = {
            "kind": "look_deeper",
            "what": "collectives",
            "python": report.python,
            "arguments": [json.dumps(order)],
            "limit": total_s,
            "defaults": _defaults(report, meeting.interfaces[node]),
            "frees_port": True,
        }
        nodes.send(node, message)
    answers = nodes.collect("looked", list(range(len(nodes))), total_s + 10)
    facts = [fact for node in sorted(answers) for fact in answers[node]["facts"]]
    ranks = {
        first + local: nodes.name(node) for node, first in enumerate(firsts) for local in range(counts[node])
    }
    errors = {nodes.name(node): answer["error"] for node, answer in answers.items()}
    found = judge_collective(facts, ranks, limit_s, errors)
    logs = {nodes.name(node): _log_of(answer["facts"]) for node, answer in answers.items()}
    measured = _read_measured(facts, [nodes.name(node) for node in range(len(nodes))])
    links = {nodes.name(node): _describe_link(reports[node], meeting, node) for node in range(len(nodes))}
    slow = judge_bandwidths(measured.inside, measured.pairs, links)
    return measured, [*(add_log(finding, logs) for finding in found), *slow]


def _read_measured(facts: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Measured:
    told = [fact["rank"] for fact in facts if "rank" in fact]
    inside = [fact["node_bandwidth"] for fact in told if "node_bandwidth" in fact]
    pairs = [fact["pair_bandwidth"] for fact in told if "pair_bandwidth" in fact]
    return Measured(
        [fact["bandwidth"] for fact in told if "bandwidth" in fact],
        {names[row["node"]]: row["bus_gb_s"] for row in sorted(inside, key=lambda row: row["node"])},
        [
            {"hosts": [names[node] for node in row["nodes"]], "bus_gb_s": row["bus_gb_s"]}
            for row in sorted(pairs, key=lambda row: row["nodes"])
        ],
    )


def _describe_link(report: NodeReport, meeting: Meeting, node: int) -> str:
    """The interface by which the node talks to others, its address and speed; empty where it is not known."""
    name = meeting.interfaces[node]
    if not name:
        return ""
    speed = report.link_speeds.get(name)
    told = f", {speed} Mbit/s" if speed else ""
    return f"{name} ({own_address(report, meeting, node)}{told})"


def _log_of(facts: Sequence[Mapping[str, Any]]) -> list[str]:
    return [line for fact in facts for line in fact.get("log", ())]


def add_log(finding: Finding, logs: Mapping[str, Sequence[str]]) -> Finding:
    """The finding with what RCCL's logs say on its hosts, where there are any."""
    lines = [line.strip() for host in finding.hosts for line in logs.get(host, ())[:LOG_LINES]]
    if not lines:
        return finding
    return dataclasses.replace(finding, message=f"{finding.message}; RCCL says: {' | '.join(lines)}")


def own_address(report: NodeReport, meeting: Meeting, node: int) -> str:
    """The node's address on the interface by which nodes reach each other."""
    if node == 0:
        return meeting.address
    named = [address for name, address in report.interfaces if name == meeting.interfaces[node]]
    return next(iter(named), report.session_address or "127.0.0.1")


def _defaults(report: NodeReport, interface: str) -> dict[str, str]:
    defaults = dict(DCU_DEFAULTS) if report.is_dcu else {}
    if interface:
        defaults |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": "=" + interface}
    return {**defaults, "OMP_NUM_THREADS": "1"}
