"""Cards and host as they are while ranks run; a tool that hangs or fails holds nobody up and is left behind by nobody."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher.node import gauges
from tests.fakes.fakedtk import FakeNode
from tests.node.head import Head, open_head, wait_until_gone

#: stands in for hy-smi on this machine, which has no card: one argument alone
USE_TOOL = "import launcher.node.gauges as g; g.find_tool = lambda variables: ([{!r}], dict(variables))"


def write_tool(folder: Path, text: str) -> str:
    path = folder / "hy-smi"
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_the_host_is_read_again_and_again(head: Head) -> None:
    head.prepare()
    head.send("watch", every=0.2)
    head.send("watch", every=0.2)  # a second attempt of the run: no second reader
    first = head.wait_for("gauges")
    second = head.wait_for("gauges")
    assert first["cards"] == []
    assert first["cpus"] == os.cpu_count()
    assert 0 < first["used_mib"] < first["memory_mib"]
    assert 0 <= second["cpu_percent"] <= 100
    assert second["time"] - first["time"] > 0.1
    assert head.end() == 0


def test_the_table_of_a_node_with_cards_has_memory_use_and_temperature(tmp_path: Path) -> None:
    FakeNode(used_percent=25).write(tmp_path)
    command, environment = gauges.find_tool({"PATH": "/usr/bin:/bin"}, str(tmp_path))
    assert command == [f"{tmp_path}/opt/hyhal/bin/hy-smi"]
    assert environment["LD_LIBRARY_PATH"] == f"{tmp_path}/opt/hyhal/lib"
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cards = gauges.read_tool(command, text, [{"index": n, "memory_mib": 65520} for n in range(8)])
    assert len(cards) == 8
    assert cards[7] == {
        "index": 7, "temp_c": 40.0, "power_w": 90.0, "used_percent": 25.0, "busy_percent": 0.0, "memory_mib": 65520,
        "used_mib": 16380,
    }  # fmt: skip


def test_a_node_without_cards_has_no_tool(tmp_path: Path) -> None:
    assert gauges.find_tool({"PATH": "/usr/bin:/bin"}, str(tmp_path))[0] == []


def test_what_a_tool_says_comes_while_ranks_run_and_their_exit_is_still_seen(tmp_path: Path) -> None:
    tool = write_tool(tmp_path, "echo 'HCU Temp VRAM% HCU%'; echo '0 51.0C 10% 97%'\n")
    with open_head(tmp_path, before=USE_TOOL.format(tool)) as head:
        head.prepare()
        head.send("watch", every=0.2)
        head.order("import time\ntime.sleep(3)\n")
        assert (
            head.wait_for("gauges")["cards"][0].items()
            >= {"index": 0, "temp_c": 51.0, "busy_percent": 97.0}.items()
        )
        assert head.wait_for("stopped", 20)["left"] == []
        assert head.exits() == {0: 0, 1: 0}
        assert head.end() == 0


def test_a_tool_that_hangs_holds_up_neither_the_end_of_ranks_nor_that_of_the_agent(tmp_path: Path) -> None:
    tool = write_tool(tmp_path, f"trap '' TERM\necho $$ >> {tmp_path}/pids\nwhile :; do sleep 1; done\n")
    with open_head(tmp_path, before=USE_TOOL.format(tool)) as head:
        head.prepare()
        head.send("watch", every=0.2)
        head.order("import time\ntime.sleep(600)\n")
        deadline = time.monotonic() + 20
        while not (tmp_path / "pids").exists() and time.monotonic() < deadline:
            head.read(0.05)
        begun = time.monotonic()
        head.send("stop", how="asked", grace=5.0)
        assert head.wait_for("stopped", 10)["left"] == []
        assert time.monotonic() - begun < 4
        assert head.end() == 0
        wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()], 5)


def test_a_tool_that_hangs_is_not_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "READING_LIMIT_S", 0.3)
    tool = write_tool(tmp_path, f"echo $$ >> {tmp_path}/pids\nexec sleep 600\n")
    said: list[dict] = []
    monkeypatch.setattr(gauges, "find_tool", lambda variables: ([tool], dict(variables)))
    reader = gauges.Gauges({"PATH": os.environ["PATH"]}, 0.1, said.append)
    deadline = time.monotonic() + 15
    while not said and time.monotonic() < deadline:
        time.sleep(0.05)
    reader.end()
    assert said[0]["cards"] == []
    wait_until_gone([int(pid) for pid in (tmp_path / "pids").read_text().split()], 5)
