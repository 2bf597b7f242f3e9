"""The line between agent and rank: whole lines, in order, however they arrive."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.train.channel import Channel, describe_event


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    yield Channel(ours), theirs
    ours.close()
    theirs.close()


def test_orders_that_arrive_together_are_kept_for_who_asks(pair):
    channel, agent = pair
    agent.sendall(b'{"kind":"recipe","n":1}\n{"kind":"save"}\n{"kind":"go"}\n')
    assert channel.receive("recipe")["n"] == 1
    assert channel.receive("go") == {"kind": "go"}
    assert channel.poll() == ["save"]
    assert channel.poll() == []


def test_an_order_may_arrive_in_pieces(pair):
    channel, agent = pair
    text = '{"kind":"recipe","config":"中\u2028文"}\n'.encode()
    for byte in text[:-1]:
        agent.sendall(bytes([byte]))
        assert channel.poll() == []
    agent.sendall(text[-1:])
    assert channel.receive("recipe")["config"] == "中\u2028文"


def test_an_agent_that_is_gone_ends_the_wait_but_no_send(pair):
    channel, agent = pair
    agent.close()
    with pytest.raises(EOFError, match="'go'"):
        channel.receive("go")
    channel.note("a")
    channel.note("b")
    assert not channel.has_agent


def test_events_are_json_lines(pair):
    channel, agent = pair
    channel.send("metric", {"loss": 1.5}, 3)
    channel.warn("坏")
    lines = agent.recv(4096).decode().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"kind": "metric", "data": {"loss": 1.5}, "step": 3},
        {"kind": "warning", "data": {"message": "坏"}},
    ]


def test_the_variable_is_taken_out_of_the_environment(monkeypatch):
    ours, theirs = socket.socketpair()
    monkeypatch.setenv("DCU_LAUNCH_CHANNEL", str(ours.detach()))
    channel = Channel.from_environment()
    assert "DCU_LAUNCH_CHANNEL" not in os.environ
    theirs.sendall(b'{"kind":"go"}\n')
    assert channel.receive("go")
    channel._sock.close()  # type: ignore[union-attr]
    theirs.close()


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"kind": "metric", "step": 2, "data": {"loss": 1.0, "lr": 1e-4, "tokens_per_s": 10.4}},
         "step 2  loss 1.0000  lr 1.00e-04  10 tokens/s"),
        ({"kind": "metric", "step": 2, "data": {"loss": None, "eval_loss": 0.5}}, "step 2  eval_loss 0.5000"),
        ({"kind": "warning", "data": {"message": "m"}}, "warning: m"),
        ({"kind": "result", "data": {"path": "/r"}}, "result: /r"),
        ({"kind": "rank_ready", "data": {}}, ""),
    ],
)  # fmt: skip
def test_without_an_agent_events_are_lines_for_people(event: dict[str, Any], text, capsys):
    assert describe_event(event) == text
    Channel().send(event["kind"], event["data"], event.get("step"))
    assert capsys.readouterr().out == (text + "\n" if text else "")
