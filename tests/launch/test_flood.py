"""Ranks that print faster than anybody reads: files are whole, nodes are not lost, and a stop comes through at once."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.launch.faulty_run import FaultyRun

pytestmark = pytest.mark.lab

#: rank 2 prints so many MiB of lines as fast as it can
FLOOD = """
up()
if rank == 2:
    line = b"%06d of some eighty characters, as ranks print them when they print too much ....\\n"
    piece = b"".join(line % number for number in range(12500))
    for _ in range(int(sys.argv[1])):
        os.write(1, piece[: 1 << 20].ljust(1 << 20, b"."))
"""
LOST_AFTER = ("--lost-after", "3")


def check_file(path: Path, mebibytes: int) -> None:
    lines = b"%06d of some eighty characters, as ranks print them when they print too much ....\n"
    piece = b"".join(lines % number for number in range(12500))[: 1 << 20].ljust(1 << 20, b".")
    expected, found = hashlib.sha256(b"rank 2 is up\n"), hashlib.sha256()
    for _ in range(mebibytes):
        expected.update(piece)
    with open(path, "rb") as file:
        while data := file.read(1 << 20):
            found.update(data)
    assert path.stat().st_size == len(b"rank 2 is up\n") + mebibytes * (1 << 20)
    assert found.hexdigest() == expected.hexdigest()


def test_two_hundred_megabytes_are_whole_on_disk_and_too_many_for_the_terminal(
    lab: Lab, lab_path: Path
) -> None:
    run = FaultyRun(lab, lab_path, FLOOD, *LOST_AFTER, arguments=["200"])
    run.wait_end(120)
    run.check(0, "done")
    check_file(run.folder / "out" / "logs" / "node002" / "rank-00002.log", 200)
    left_out = [int(count) for count in re.findall(r"\[dcu-launch: (\d+) bytes not shown here", run.said())]
    assert sum(left_out) > 0
    assert (run.folder / "said").stat().st_size + sum(left_out) >= 200 << 20
    assert "lost" not in run.said()


def test_the_head_keeps_all_of_a_node_that_does_not_see_its_folder(lab: Lab, lab_path: Path) -> None:
    program = FLOOD.replace("up()", "print('rank', rank, 'is up', flush=True)", 1)
    run = FaultyRun(lab, lab_path, program, *LOST_AFTER, "--run-dir", "/tmp/out", arguments=["30"])
    run.wait_end(120)
    assert run.head.returncode == 0, run.said()
    seen = Path(f"/proc/{lab.init_pid(1)}/root/tmp/out/logs/node002/rank-00002.log")
    check_file(seen, 30)


@pytest.mark.parametrize("reader", ["file", "nobody"])
def test_a_stop_is_not_held_up_by_what_is_still_to_be_shown(lab: Lab, lab_path: Path, reader: str) -> None:
    reading, writing = os.pipe()
    output = {"stdout": writing} if reader == "nobody" else {}
    run = FaultyRun(lab, lab_path, FLOOD, *LOST_AFTER, arguments=["1000000"], **output)
    os.close(writing)
    run.wait_up()
    time.sleep(4)  # longer than a silent node would be borne
    assert run.head.poll() is None, run.said()[-3000:]
    run.signal(signal.SIGINT)
    run.wait_end(
        9 + (5 if reader == "nobody" else 0)
    )  # the view waits a moment for a terminal that takes nothing
    os.close(reading)
    assert run.head.returncode == 130
    assert run.summary()["kind"] == "stopped"
