"""An agent that only answers loads little: many nodes answer at once when a run begins."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.commands.execute import _prepare_messages
from launcher.commands.request import read_request
from launcher.commands.run import run
from launcher.node import interfaces

ROOT = Path(__file__).resolve().parents[2]
#: each takes as long to load as many modules of ours, or brings such with it
LONG = ("array", "collections", "ctypes", "enum", "functools", "hashlib", "json", "platform", "re", "selectors", "socket",
        "subprocess", "tempfile", "threading", "typing", "launcher.node.numa", "launcher.node.rank_group")  # fmt: skip
ANSWER = """
import sys
sys.path.insert(0, sys.argv[1])
from launcher.node import agent, plain_json
message = plain_json.loads(sys.argv[2])
instance = agent.Agent("", 0, 1, "0" * 32, 0)
answer = instance._prepare(message)
sys.stdout.write(plain_json.dumps({"kind": answer["kind"], "topology": "topology" in answer["report"],
    "modules": sorted(sys.modules), "names": sorted(answer["report"])}))
"""


def answer(folder: Path, *words: str) -> dict[str, list[str]]:
    """What an agent says and has loaded when the head asks as it does for this command line."""
    (folder / "hosts").write_text("localhost slots=1\n")
    with run.make_context("test", ["--hosts", str(folder / "hosts"), *words, __file__]) as context:
        (message,) = _prepare_messages(read_request(context.params), None)
    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", "-c", ANSWER, str(ROOT), json.dumps({**message, "setup": []})],
        stdin=subprocess.PIPE, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    told: dict[str, list[str]] = json.loads(done.stdout)
    return told


def test_a_node_without_cards_answers_with_few_modules(tmp_path: Path) -> None:
    told = answer(tmp_path, "--start", "spawn")
    assert told["kind"] == "report"
    assert {"interfaces", "python"} <= set(told["names"])
    assert not set(LONG) & set(told["modules"])
    assert not told["topology"]


def test_the_topology_is_read_where_binding_is_asked_for(tmp_path: Path) -> None:
    assert answer(tmp_path, "--start", "spawn", "--bind", "numa")["topology"]


def test_netlink_and_the_older_call_tell_the_same_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    known = interfaces._ask_netlink()
    assert {"name": "lo", "address": "127.0.0.1"} in known
    assert interfaces._ask_ioctl() == known
    whole = interfaces.interfaces()

    def refuse(family: int, *rest: int) -> socket.socket:
        if family == socket.AF_NETLINK:
            raise OSError(97, "Address family not supported by protocol")
        return real(family, *rest)

    real = interfaces.socket.socket  # type: ignore[attr-defined]
    monkeypatch.setattr(interfaces.socket, "socket", refuse)  # type: ignore[attr-defined]
    assert interfaces.interfaces() == whole
