"""Where the ranks meet: a free port of the master node at an address that every other node proved to reach.

Between report and order: ``listen`` to the first node, ``reach`` to the others. Runs on the head.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from launcher.base.errors import PreflightError
from launcher.hosts.host import Host
from launcher.launch.nodes import Nodes
from launcher.launch.order import Meeting, RunSpec
from launcher.preflight.report import NodeReport

LISTEN_LIMIT_S = 15.0
REACH_LIMIT_S = 15.0


def master_candidates(spec: RunSpec, host: Host, report: NodeReport) -> list[str]:
    """Addresses of the master to try, best first: named ones alone; else where the head came in, then its NICs.

    A bridge that only this node has (docker0, virbr0) comes last: other nodes may have one with the same address.
    """
    if spec.master_address:
        return [spec.master_address]
    if host.address:
        return [host.address]
    private = ("docker", "virbr", "veth", "br-", "cni", "flannel", "lo")
    ordered = sorted(report.interfaces, key=lambda entry: entry[0].startswith(private))
    addresses = [address for name, address in ordered if not address.startswith("127.") and address != "::1"]
    if report.session_address in addresses:
        addresses.insert(0, str(report.session_address))
    return list(dict.fromkeys(addresses))


def arrange_meeting(
    nodes: Nodes, spec: RunSpec, hosts: Sequence[Host], reports: Sequence[NodeReport], wanted_port: int | None
) -> Meeting:
    """Have the master pick a port and the other nodes reach it.

    Raises:
        PreflightError: the port is taken, or no address of the master is reached by all nodes.
    """
    nodes.send(0, {"kind": "listen", "port": wanted_port or 0})
    port = int(nodes.collect("listening", [0], LISTEN_LIMIT_S)[0]["port"])
    if len(hosts) == 1:
        return Meeting(spec.master_address or "127.0.0.1", port, ("",))
    candidates = master_candidates(spec, hosts[0], reports[0])
    if not candidates:
        raise PreflightError(
            f"{hosts[0].name} has no address that other nodes could reach",
            "name one with addr= on its hostfile line, or --master-addr",
        )
    others = list(range(1, len(hosts)))
    nonce = secrets.token_hex(16)
    for node in others:
        nodes.send(node, {"kind": "reach", "candidates": candidates, "port": port, "nonce": nonce})
    answers = nodes.collect("reached", others, REACH_LIMIT_S)
    reached = {node: {entry[0]: entry[2] for entry in answers[node]["reached"]} for node in others}
    for address in candidates:
        if all(address in reached[node] for node in others):
            own = next((name for name, held in reports[0].interfaces if held == address), "")
            return Meeting(address, port, (own, *(reached[node][address] for node in others)))
    lines = []
    for node in others:
        tried = ", ".join(f"{address} ({why})" for address, why in answers[node]["failed"].items())
        if tried:
            lines.append(f"{nodes.name(node)} cannot reach {nodes.name(0)}: {tried}; port {port}")
    raise PreflightError(
        "no address of the master is reached by every node\n" + "\n".join(lines),
        "open the firewall between nodes, name the training network with addr= or --master-addr, or a port with --master-port",
    )
