"""Rows of nodes: the cards of a node's ranks, and a file that is read back as it was written."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.launch.board import NODES_FILE, Board, NodeRow, cards_of, read_rows

CARDS = [{"index": number} for number in range(8)]


def order(ranks: int, **variables: str) -> Any:
    numbers = [SimpleNamespace(rank=rank) for rank in range(ranks)]
    return SimpleNamespace(node_rank=0, host="a", ranks=numbers, variables=variables, defaults={})


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [(order(8), [*range(8)]), (order(4), [0, 1, 2, 3]), (order(2, HIP_VISIBLE_DEVICES="5,2"), [2, 5]),
     (order(2, CUDA_VISIBLE_DEVICES="GPU-1234"), [0, 1]), (order(9), [*range(8)])],
)  # fmt: skip
def test_cards_of_its_ranks(wanted: Any, indices: list[int]) -> None:
    assert [card["index"] for card in cards_of(wanted, CARDS)] == indices
    assert cards_of(wanted, ()) == ()


class FakeSupervisor:
    """State that a supervisor holds, set by the test."""

    def __init__(self, *states: str, is_recipe: bool = False) -> None:
        self.sent: list[dict] = []
        self.ranks = {rank: SimpleNamespace(state=state) for rank, state in enumerate(states)}
        self.nodes = SimpleNamespace(lost={}, gauges={}, send_all=self.sent.append)
        self.failures: list[Any] = []
        self.plan = SimpleNamespace(nodes=[order(len(states))])
        self.spec = SimpleNamespace(recipe={} if is_recipe else None)
        self.is_stopping = self.can_save = False
        self.is_up = True


def state_of(supervisor: FakeSupervisor) -> str:
    rows: list[NodeRow] = []
    Board(supervisor, rows.extend, lambda text: None).tick(1.0)  # type: ignore[arg-type]
    return rows[0].state


def test_states() -> None:
    assert state_of(FakeSupervisor("waiting", "started")) == "starting"
    assert state_of(FakeSupervisor("started", "joined")) == "running"
    assert state_of(FakeSupervisor("started", "ready", is_recipe=True)) == "loading"
    assert state_of(FakeSupervisor("ready", "ready", is_recipe=True)) == "ready"
    assert state_of(FakeSupervisor("ended", "ended")) == "ended"
    supervisor = FakeSupervisor("joined", "ended")
    supervisor.is_stopping = True
    assert state_of(supervisor) == "stopping"
    supervisor.failures = [SimpleNamespace(rank=1)]
    assert state_of(supervisor) == "failed"
    supervisor.nodes.lost = {0: "no answer"}
    assert state_of(supervisor) == "lost"


def test_the_file_comes_back_and_nodes_are_asked_once(tmp_path: Path) -> None:
    supervisor = FakeSupervisor("joined", "joined")
    supervisor.nodes.gauges = {0: {"cards": CARDS, "cpu_percent": 12.5, "memory_mib": 100, "used_mib": 50}}
    saved: list[str] = []
    board = Board(supervisor, lambda rows: None, saved.append, 7.0)  # type: ignore[arg-type]
    for tenth in range(150):
        board.tick(100 + tenth / 10)
    assert len(saved) == 2
    assert supervisor.sent == [{"kind": "watch", "every": 7.0}]
    (tmp_path / NODES_FILE).write_text(saved[-1])
    (row,) = read_rows(tmp_path)
    assert asdict(row) == json.loads(saved[-1])[0]
    assert (row.host, row.num_ranks, row.state, row.cpu_percent, len(row.cards)) == (
        "a",
        2,
        "running",
        12.5,
        2,
    )
    for text in ("", "{}", '[{"host": 1}]', "[1]"):
        (tmp_path / NODES_FILE).write_text(text)
        assert read_rows(tmp_path) == []
