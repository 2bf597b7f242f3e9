"""Where ranks meet: an address of the master that every other node has proved to reach, and a free port there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.base.errors import PreflightError
from launcher.hosts.hostfile import parse_hostfile
from launcher.launch.meeting import arrange_meeting
from launcher.launch.nodes import Nodes
from launcher.launch.order import Meeting, RunSpec
from launcher.preflight.report import NodeReport
from launcher.remote.session import Inbox
from tests.fakes.session import FakeSession

#: docker0 and a storage network come first in the kernel's order, as they do on such machines
MASTER = NodeReport(
    "node001",
    interfaces=(
        ("docker0", "172.17.0.1"),
        ("eth0", "10.0.0.1"),
        ("ib0", "10.1.0.1"),
        ("lo", "127.0.0.1"),
        ("lo", "::1"),
    ),
    session_address="10.0.0.1",
)
Arrange = Callable[..., Meeting]


class Network:
    """Answers of nodes.

    Args:
        reached: for each node but the first, the master's addresses it reaches -> its own interface towards them.
    """

    def __init__(self, *reached: dict[str, str]) -> None:
        self.reached = reached
        self.asked: list[list[str]] = []
        self.wanted: list[int] = []

    def answer(self, session: FakeSession, message: dict[str, Any]) -> None:
        if message["kind"] == "listen":
            self.wanted.append(message["port"])
            session.say(kind="listening", port=message["port"] or 41000)
        elif message["kind"] == "reach":
            self.asked.append(message["candidates"])
            known = self.reached[session.node - 1]
            session.say(
                kind="reached",
                reached=[[a, "10.0.0.9", known[a]] for a in message["candidates"] if a in known],
                failed={a: "No route to host" for a in message["candidates"] if a not in known},
            )


@pytest.fixture
def arrange() -> Iterator[Arrange]:
    opened: list[Nodes] = []

    def make(network: Network, hosts: str, *, master_address: str | None = None, port: int | None = None,
             master: NodeReport = MASTER) -> Meeting:  # fmt: skip
        inbox = Inbox()
        named = parse_hostfile(hosts, "hosts")
        sessions = [FakeSession(node, host.name, inbox, network.answer) for node, host in enumerate(named)]
        opened.append(Nodes(sessions, inbox, 10.0, tick=lambda: None))
        reports = [master, *(NodeReport(host.name) for host in named[1:])]
        spec = RunSpec("run", "script", "x.py", (), "/project", "/run", master_address=master_address)
        return arrange_meeting(opened[-1], spec, named, reports, port)

    yield make
    for nodes in opened:
        nodes._ended.set()


def test_the_address_by_which_the_head_came_in_is_tried_first_and_bridges_last(arrange: Arrange) -> None:
    network = Network({"10.0.0.1": "eth1", "10.1.0.1": "ib0", "172.17.0.1": "docker0"})
    assert arrange(network, "node001\nnode002\n") == Meeting("10.0.0.1", 41000, ("eth0", "eth1"))
    assert network.asked == [["10.0.0.1", "10.1.0.1", "172.17.0.1"]]


def test_the_first_address_that_all_nodes_reach_is_taken(arrange: Arrange) -> None:
    network = Network({"10.0.0.1": "eth0", "10.1.0.1": "ib1"}, {"10.1.0.1": "ib0"})
    assert arrange(network, "node001\nnode002\nnode003\n") == Meeting(
        "10.1.0.1", 41000, ("ib0", "ib1", "ib0")
    )


@pytest.mark.parametrize(
    ("hosts", "option", "tried"),
    [
        ("node001\nnode002\n", "10.1.0.1", ["10.1.0.1"]),
        ("node001 addr=10.1.0.1\nnode002\n", None, ["10.1.0.1"]),
        ("node001 addr=10.9.0.1\nnode002\n", "10.1.0.1", ["10.1.0.1"]),
    ],
)
def test_a_named_address_wins_and_is_proved_all_the_same(
    arrange: Arrange, hosts: str, option: str | None, tried: list[str]
) -> None:
    network = Network({"10.0.0.1": "eth0", "10.1.0.1": "ib0"})
    assert arrange(network, hosts, master_address=option).address == "10.1.0.1"
    assert network.asked == [tried]


def test_a_master_that_is_not_reached_is_told_with_every_reason(arrange: Arrange) -> None:
    network = Network({"10.0.0.1": "eth0"}, {"10.1.0.1": "ib0"})
    with pytest.raises(PreflightError) as told:
        arrange(network, "node001\nnode002\nnode003\n")
    assert told.value.message == (
        "no address of the master is reached by every node\n"
        "node002 cannot reach node001: 10.1.0.1 (No route to host), 172.17.0.1 (No route to host); port 41000\n"
        "node003 cannot reach node001: 10.0.0.1 (No route to host), 172.17.0.1 (No route to host); port 41000"
    )
    assert "--master-addr" in told.value.hint


def test_a_wanted_port_is_asked_for(arrange: Arrange) -> None:
    network = Network({"10.0.0.1": "eth0"})
    assert arrange(network, "node001\nnode002\n", port=29500).port == 29500
    assert network.wanted == [29500]


def test_a_port_that_is_taken_is_told(arrange: Arrange) -> None:
    network = Network({})
    network.answer = lambda session, message: session.say(
        kind="fault", error="port 29500: Address already in use"
    )
    with pytest.raises(PreflightError, match="node001: port 29500: Address already in use"):
        arrange(network, "node001\nnode002\n", port=29500)


def test_one_host_meets_on_loopback(arrange: Arrange) -> None:
    assert arrange(Network(), "node001\n") == Meeting("127.0.0.1", 41000, ("",))
    assert arrange(Network(), "node001\n", master_address="10.1.0.1").address == "10.1.0.1"


def test_a_master_without_an_address_is_told(arrange: Arrange) -> None:
    with pytest.raises(PreflightError, match="node001 has no address that other nodes could reach"):
        arrange(
            Network({}), "node001\nnode002\n", master=NodeReport("node001", interfaces=(("lo", "127.0.0.1"),))
        )
