"""A forked rank that never became the agent's own child: its end cannot be taken, and must not be waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from launcher.node.poller import Poller
from launcher.node.rank_group import EXIT_VANISHED, RankGroup
from launcher.node.ranks import RankProcess


class Line:
    """Keeps what the agent would tell the head."""

    is_full = False

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


def make_rank(pid: int) -> RankProcess:
    return RankProcess(4, 0, pid, 0, -1, None, "")


def test_a_rank_that_is_another_ones_child_is_told_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # the agent ends whatever descends from its process, which here is the tests' own
    monkeypatch.setattr(RankGroup, "end_leftovers", lambda self: [])
    line = Line()
    group = RankGroup(Poller(), line, "/home", "token")  # type: ignore[arg-type]
    group._ranks[4] = make_rank(os.getppid())
    group.reap(only_ranks=True)
    told = [message for message in line.sent if message["kind"] == "rank_exit"]
    assert [(message["rank"], message["status"]) for message in told] == [(4, EXIT_VANISHED)]


def test_a_child_is_ours_until_its_end_is_taken() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    rank = make_rank(process.pid)
    assert rank.is_ours()
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert rank.is_ours()
    process.wait()
    assert not rank.is_ours()
