"""Who is late at the rendezvous is named, scripts that never meet are left alone, and a port that somebody took is no end."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.launch.faulty_run import FaultyRun

pytestmark = pytest.mark.lab

END_S = 30.0
#: as torch's store does it: rank 0 listens, everybody connects to it, rank 0 too, and stays connected
MEET = """
import socket
def meet():
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(address)
        except OSError as error:
            raise OSError(f"The server socket has failed to bind to {address[0]}:{address[1]} ({error})") from None
        listening.listen()
    while True:
        try:
            mine = socket.create_connection(address)
            break
        except OSError:
            time.sleep(0.05)
    if rank == 0:
        others = [listening.accept()[0] for _ in range(int(os.environ["WORLD_SIZE"]))]
        for other in others:
            other.sendall(b"x")
    assert mine.recv(1) == b"x"
    print("met", flush=True)
    time.sleep(1)
"""
#: takes the port of each plan, at once; the number of ports is the first word
THIEF = """
import json, pathlib, socket, sys, time
taken = {}
while len(taken) < int(sys.argv[1]):
    try:
        port = json.loads(pathlib.Path("out/plan.json").read_text())["master_port"]
    except (OSError, ValueError):
        port = None
    if port and port not in taken:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("0.0.0.0", port))
            sock.listen()
            taken[port] = sock
        except OSError:
            sock.close()
    time.sleep(0.005)
time.sleep(600)
"""
LATE = MEET + "rank >= 2 and time.sleep(float(sys.argv[1]))\nmeet()\n"


def test_a_late_node_is_named_and_the_start_is_given_up(lab: Lab, lab_path: Path) -> None:
    run = FaultyRun(lab, lab_path, LATE, "--start-timeout", "6", arguments=["700"])
    run.wait_end(END_S)
    assert "dcu-launch: waiting for node002 (ranks 2-3)\n" in run.said()
    run.check(
        3, "late", r"\Anot all ranks joined within 6 s: waiting for node002 \(ranks 2-3\)\n.*--start-timeout"
    )


def test_a_node_that_comes_in_time_is_waited_for(lab: Lab, lab_path: Path) -> None:
    run = FaultyRun(lab, lab_path, LATE, "--start-timeout", "30", arguments=["6"])
    run.wait_end(END_S)
    run.check(0, "done")
    assert "dcu-launch: waiting for node002 (ranks 2-3)\n" in run.said()
    assert run.said().count("met") == 1 or run.said().count("met\n") == 4


def test_scripts_that_never_meet_are_not_bothered(lab: Lab, lab_path: Path) -> None:
    run = FaultyRun(lab, lab_path, "rank and time.sleep(3)\n", "--start-timeout", "1")
    run.wait_end(END_S)
    run.check(0, "done")
    assert "waiting" not in run.said()


# ---- a port that somebody takes between our look and rank 0


def thieved(lab: Lab, folder: Path, ports: int, *words: str) -> FaultyRun:
    (folder / "thief.py").write_text(THIEF)
    run = FaultyRun(lab, folder, MEET + "time.sleep(2)\nmeet()\n", "--start", "spawn", *words)
    thief = lab.popen(1, [sys.executable, folder / "thief.py", str(ports)], cwd=run.folder)
    try:
        run.head.wait(3 * END_S)
    finally:
        thief.kill()
        thief.wait()
    for host in run.hosts:
        lab.wait_gone(host, within_s=5)
    return run


def test_a_port_taken_before_rank_0_came_is_no_end(lab: Lab, lab_path: Path) -> None:
    run = thieved(lab, lab_path, 1)
    run.check(0, "done")
    assert run.said().count("was taken in the meantime, starting again") == 1
    events = [json.loads(line) for line in (run.folder / "out" / "events.jsonl").read_text().splitlines()]
    first = next(event for event in events if event["kind"] == "retry")
    assert first["data"]["why"].startswith("port ")
    assert [event["attempt"] for event in events if event["kind"] == "rank_started"] == [0] * 4 + [1] * 4


@pytest.mark.soak
def test_a_thief_of_every_port_is_told_in_the_end(lab: Lab, lab_path: Path) -> None:
    run = thieved(lab, lab_path, 10)
    run.check(1, "rank_failed", r"\Arank 0 on node001 failed: OSError: The server socket has failed to bind", rank=0,
              origin="rank")  # fmt: skip
    assert run.said().count("starting again") == 3


def test_a_port_that_was_asked_for_is_not_exchanged(lab: Lab, lab_path: Path) -> None:
    run = thieved(lab, lab_path, 1, "--master-port", "29531")
    run.check(1, "rank_failed", "29531", rank=0, origin="rank")
    assert "starting again" not in run.said()


def test_the_port_is_kept_for_rank_0(lab: Lab, lab_path: Path) -> None:
    """Whoever is given a port by the kernel, or does not mean to share one, does not get this."""
    program = (
        MEET
        + """
if rank == 0:
    other = socket.socket()
    try:
        other.bind(("0.0.0.0", int(os.environ["MASTER_PORT"])))
    except OSError as error:
        print("refused:", error, flush=True)
    other.close()
meet()
"""
    )
    run = FaultyRun(lab, lab_path, program)
    begun = time.monotonic()
    run.wait_end(END_S)
    assert time.monotonic() - begun < END_S
    run.check(0, "done")
    assert "refused: [Errno 98] Address already in use" in run.said()
