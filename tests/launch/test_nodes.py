"""The open sessions of a run as one thing: nobody is lost by mistake, everybody who is lost is named, in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.base.errors import NodeLostError, PreflightError, StoppedError
from launcher.launch import nodes as nodes_module
from launcher.launch.nodes import Nodes
from launcher.remote.session import MAX_OUTPUTS, Arrival, Inbox
from tests.fakes.session import Answer, FakeSession

Open = Callable[..., Nodes]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def open_nodes(inbox: Inbox) -> Iterator[Open]:
    """Makes nodes node001, node002, ... of answers; ends their pings afterwards."""
    opened: list[Nodes] = []

    def make(*answers: Answer, lost_after: float = 10.0, tick: Callable[[], None] = lambda: None) -> Nodes:
        sessions = [FakeSession(n, f"node{n + 1:03d}", inbox, answer) for n, answer in enumerate(answers)]
        opened.append(Nodes(sessions, inbox, lost_after, tick))
        return opened[-1]

    yield make
    for nodes in opened:
        nodes._ended.set()


def quiet(*_: Any) -> None:
    """A node that answers nothing but pings."""


def answers(kind: str, **fields: Any) -> Answer:
    return lambda session, message: session.say(kind=kind, **fields)


def losses(nodes: Nodes, within_s: float) -> dict[int, str]:
    return {
        arrival.node: arrival.lost for arrival in nodes.arrivals(time.monotonic() + within_s) if arrival.lost
    }


def test_a_silent_node_is_lost_once_and_the_others_are_not(open_nodes: Open) -> None:
    nodes = open_nodes(quiet, quiet, quiet, lost_after=0.4)
    nodes.sessions[1].is_dead = True
    begun = time.monotonic()
    assert losses(nodes, 1.5) == {1: "no answer for 0 s"}
    assert time.monotonic() - begun >= 0.4
    assert nodes.alive == [0, 2]
    nodes.send_all({"kind": "stop"})
    assert [session.kinds() for session in nodes.sessions] == [["stop"], [], ["stop"]]
    nodes.sessions[1].say(kind="stopped")
    assert list(nodes.arrivals(time.monotonic() + 0.2)) == []


def test_a_flood_of_output_hides_no_loss_and_no_tick(open_nodes: Open) -> None:
    ticks: list[float] = []
    nodes = open_nodes(quiet, quiet, lost_after=0.4, tick=lambda: ticks.append(time.monotonic()))
    nodes.sessions[1].is_dead = True
    flooding = threading.Event()
    flooding.set()

    def flood() -> None:
        while flooding.is_set():
            nodes.sessions[0].print(0, b"x" * 100)

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    begun = time.monotonic()
    lost = next(arrival for arrival in nodes.arrivals(begun + 10) if arrival.lost)
    assert (lost.node, time.monotonic() - begun < 5) == (1, True)
    assert len(ticks) >= 3
    flooding.clear()
    while thread.is_alive():
        list(nodes.arrivals(time.monotonic() + 0.05))


def test_nodes_are_pinged_while_the_head_waits_for_something_else(open_nodes: Open) -> None:
    nodes = open_nodes(quiet, quiet, lost_after=0.4)
    nodes.sessions[1].is_sending = True  # a large file is on its way: the node hears of us
    time.sleep(1.0)
    assert nodes.sessions[0].pings >= 3
    assert nodes.sessions[1].pings == 0


def test_after_a_pause_of_the_head_itself_nobody_is_lost(
    open_nodes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "PING_EVERY_S", 0.2)
    nodes = open_nodes(quiet, lost_after=0.5)
    nodes.sessions[0].is_dead = True
    time.sleep(1.0)  # stopped, or a disk that did not answer
    begun = time.monotonic()
    assert next(arrival.node for arrival in nodes.arrivals(begun + 10) if arrival.lost) == 0
    assert time.monotonic() - begun >= 0.5


def test_an_answer_that_came_during_a_pause_is_not_too_late(
    open_nodes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes_module, "PING_EVERY_S", 0.2)

    def pause() -> None:
        if len(pauses) < 1:
            pauses.append(1)
            nodes.sessions[0].say(kind="report")
            time.sleep(1.0)

    pauses: list[int] = []
    nodes = open_nodes(quiet, tick=pause)
    assert set(nodes.collect("report", [0], 0.5)) == {0}
    assert pauses == [1]


def test_a_broken_line_is_a_loss_with_its_reason(open_nodes: Open) -> None:
    nodes = open_nodes(quiet, quiet)
    nodes.sessions[1].hang_up("the agent ended (exit code 137)")
    nodes.sessions[1].hang_up("again")
    assert losses(nodes, 0.3) == {1: "the agent ended (exit code 137)"}


def test_answers_are_collected_by_node(open_nodes: Open) -> None:
    nodes = open_nodes(answers("report", n=1), answers("report", n=2), quiet)
    nodes.send_all({"kind": "prepare"})
    found = nodes.collect("report", [0, 1], 5.0)
    assert {node: frame["n"] for node, frame in found.items()} == {0: 1, 1: 2}
    assert nodes.collect("report", [], 5.0) == {}


def test_all_faults_are_told_at_once(open_nodes: Open) -> None:
    nodes = open_nodes(
        answers("fault", error="no room"), answers("report"), answers("fault", error="no bash")
    )
    nodes.send_all({"kind": "prepare"})
    with pytest.raises(PreflightError) as told:
        nodes.collect("report", [0, 1, 2], 5.0)
    assert told.value.message == "node001: no room\nnode003: no bash"


def test_late_nodes_are_named_while_waiting_and_at_the_end(open_nodes: Open) -> None:
    nodes = open_nodes(answers("report"), quiet, quiet)
    nodes.send_all({"kind": "prepare"})
    words: list[list[str]] = []
    with pytest.raises(PreflightError, match=r"no answer \(report\) within 1 s from node002, node003"):
        nodes.collect("report", [0, 1, 2], 1.0, words.append)
    assert ["node002", "node003"] in words


@pytest.mark.parametrize(
    ("arrival", "error"),
    [(Arrival(-1, signal_number=15), StoppedError), (Arrival(1, lost="no answer for 10 s"), NodeLostError)],
)
def test_signals_and_losses_end_the_wait(
    open_nodes: Open, inbox: Inbox, arrival: Arrival, error: type[Exception]
) -> None:
    nodes = open_nodes(quiet, quiet)
    inbox.put(arrival)
    begun = time.monotonic()
    with pytest.raises(error) as told:
        nodes.collect("report", [0, 1], 60.0)
    assert time.monotonic() - begun < 5
    assert told.value.exit_code == {StoppedError: 143, NodeLostError: 5}[error]  # type: ignore[attr-defined]


def test_the_end_is_confirmed_or_told(open_nodes: Open) -> None:
    nodes = open_nodes(answers("ended"), quiet, lambda session, message: session.hang_up())
    begun = time.monotonic()
    assert nodes.end(limit_s=0.3) == ["node002"]
    assert time.monotonic() - begun < 5
    assert nodes.end() == []
    assert all(session.is_closed for session in nodes.sessions)
    pings = nodes.sessions[0].pings
    time.sleep(0.1)
    assert nodes.sessions[0].pings == pings


def test_output_waits_outside_the_inbox_but_messages_and_signals_do_not(inbox: Inbox) -> None:
    def flood() -> None:
        for number in range(3 * MAX_OUTPUTS):
            inbox.put(Arrival(0, (0, b"%d" % number)))

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    inbox.put(Arrival(1, {"kind": "rank_exit"}))
    inbox.put(Arrival(-1, signal_number=2))
    got = [inbox.get(5.0) for _ in range(3 * MAX_OUTPUTS + 2)]
    thread.join(5)
    assert not thread.is_alive()
    assert inbox.get(0) is None
    outputs = [arrival.frame for arrival in got if arrival and isinstance(arrival.frame, tuple)]
    assert outputs == [(0, b"%d" % number) for number in range(3 * MAX_OUTPUTS)]
    at = next(index for index, arrival in enumerate(got) if arrival and arrival.signal_number)
    assert at <= 2 * MAX_OUTPUTS
