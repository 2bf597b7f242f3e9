"""Faults on two hosts with two ranks each: nothing is left, the exit code is right, the guilty one is named, in time.

Each fault once, with three times the promised seconds, since machines that test are busy; ``make soak`` three times each
with the promised ones: 3 s for a fault of a process, grace + 2 s when asked to stop, 12 s for a lost node.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.launch.faulty_run import STOPS, FaultyRun, record

pytestmark = pytest.mark.lab

PROCESS_S, ASKED_S, LOST_S = 3.0, 2.0, 12.0
GRACE = 2
ASLEEP = "up()\ntime.sleep(700)\n"
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ASLEEP
STRAY = """
subprocess.Popen(["setsid", "sh", "-c", "trap '' TERM HUP; sleep 701; sleep 702"])
"""
# others hang in a collective when it happens
COLLECTIVE = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
up()
while rank == 3 and not all(os.path.exists(f"up-{other}") for other in range(4)):
    time.sleep(0.02)
"""


def soak(promised: float) -> list[Any]:
    """Once with patience, and three times to the letter."""
    return [
        pytest.param(3, id="once"),
        *(pytest.param(1, id=f"soak{n}", marks=pytest.mark.soak) for n in (1, 2, 3)),
    ]


patience = pytest.mark.parametrize("patience", soak(1))


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run that is up.

    Attributes:
        act: what happens; None: the program does it itself when it is up.
        promised: seconds from then until nothing is left.
        told: patterns in the last message, in any order.
    """

    program: str
    act: Callable[[FaultyRun], object] | None
    promised: float
    code: int
    kind: str
    told: tuple[str, ...]
    summary: dict[str, Any] = field(default_factory=dict)
    words: tuple[str, ...] = ()


RANK_3 = {"origin": "rank", "rank": 3, "host": "node002"}


def head(number: int) -> Callable[[FaultyRun], object]:
    return lambda run: run.signal(number)


def kill_session(run: FaultyRun) -> None:
    for process in run.lab.leftover(2, "sshd: root"):
        process.kill()


def twice(run: FaultyRun) -> None:
    run.signal(signal.SIGINT)
    run.wait_said("asking 4 ranks to end")
    run.signal(signal.SIGINT)


FAULTS = {
    "SIGINT": Fault(ASLEEP, head(signal.SIGINT), GRACE + ASKED_S, 130, "stopped", ("stopped by SIGINT",)),
    "SIGTERM": Fault(ASLEEP, head(signal.SIGTERM), GRACE + ASKED_S, 143, "stopped", ("stopped by SIGTERM",)),
    "SIGHUP": Fault(ASLEEP, head(signal.SIGHUP), GRACE + ASKED_S, 129, "stopped", ("stopped by SIGHUP",)),
    "ranks that ignore SIGTERM": Fault(
        DEAF, head(signal.SIGINT), GRACE + ASKED_S, 130, "stopped", ("stopped by SIGINT",)
    ),
    "second Ctrl-C": Fault(
        DEAF, twice, PROCESS_S, 130, "stopped", ("stopped by SIGINT at once",), words=("--grace", "600")
    ),
    "grandchildren that left the session": Fault(
        STRAY + DEAF, head(signal.SIGTERM), GRACE + ASKED_S, 143, "stopped", ("stopped by SIGTERM",)
    ),
    "one rank killed -9": Fault(
        STRAY + ASLEEP, lambda run: run.rank_process(3).kill(), PROCESS_S, 137, "rank_failed",
        (r"\Arank 3 on node002 failed: killed by SIGKILL", r"log: .*/out/logs/node002/rank-00003\.log"), RANK_3,
    ),
    "a rank calls exit(3)": Fault(
        STRAY + "up()\ntime.sleep(1)\nrank == 3 and sys.exit(3)\ntime.sleep(700)\n", None, PROCESS_S, 3, "rank_failed",
        (r"\Arank 3 on node002 failed: exit code 3\n",), RANK_3,
    ),
    "os.abort among deaf ranks": Fault(
        DEAF.replace("up()", "up()\ntime.sleep(1)\nrank == 3 and os.abort()"), None, PROCESS_S, 134, "rank_failed",
        (r"\Arank 3 on node002 failed: killed by SIGABRT",), RANK_3,
    ),
    "a rank raises": Fault(
        "up()\ntime.sleep(1)\nif rank == 3:\n    raise ValueError('坏数据 第3行')\ntime.sleep(700)\n", None, PROCESS_S, 1,
        "rank_failed", (r"\Arank 3 on node002 failed: ValueError: 坏数据 第3行 \(exit code 1\)", "Traceback"), RANK_3,
    ),
    "agent killed -9": Fault(
        STRAY + DEAF, lambda run: run.keeper(2).kill(), PROCESS_S, 5, "node_lost",
        (r"lost node002: the agent ended \(exit code 137\)",), {"host": "node002"},
    ),
    "sshd's session killed -9": Fault(
        STRAY + DEAF, kill_session, PROCESS_S, 5, "node_lost", (r"lost node002: ",), {"host": "node002"},
    ),
    "guardian killed -9": Fault(
        STRAY + DEAF, lambda run: run.keeper(2, "dcu-guardian").kill(), PROCESS_S, 5, "node_lost", ("lost node002",),
        {"host": "node002"},
    ),
}  # fmt: skip


def happen(lab: Lab, lab_path: Path, name: str, patience: int, *words: str) -> None:
    fault = FAULTS[name]
    run = FaultyRun(lab, lab_path, fault.program, "--grace", str(GRACE), *words, *fault.words)
    run.wait_up()
    if fault.act is None:
        time.sleep(1)
    else:
        fault.act(run)
    _, took = run.wait_end(patience * fault.promised)
    record(" ".join([name, *words]), took, fault.promised)
    run.check(fault.code, fault.kind, *fault.told, **fault.summary)


@patience
@pytest.mark.parametrize("name", FAULTS)
def test_fault(lab: Lab, lab_path: Path, name: str, patience: int) -> None:
    happen(lab, lab_path, name, patience)


@pytest.mark.soak
@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("words", ["--start fork", "--transport openssh"])
def test_fault_by_other_ways(lab: Lab, lab_path: Path, name: str, words: str) -> None:
    happen(lab, lab_path, name, 3, *words.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_systems_ssh_leaves_nothing_either(lab: Lab, lab_path: Path, number: signal.Signals) -> None:
    run = FaultyRun(lab, lab_path, STRAY + DEAF, "--transport", "openssh", "--grace", str(GRACE))
    run.wait_up()
    run.signal(number)
    code, _ = run.wait_end(3 * (GRACE + ASKED_S))
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)


# ---- collectives


def wait_first_exit(run: FaultyRun) -> None:
    """A Python with torch in it takes a second to end after it has raised, and more on a busy machine."""
    events = run.folder / "out" / "events.jsonl"
    deadline = time.monotonic() + 30
    while '"kind":"rank_exit"' not in events.read_text():
        assert time.monotonic() < deadline, run.said()
        time.sleep(0.01)


@patience
def test_a_rank_that_raises_while_others_sit_in_a_collective(lab: Lab, lab_path: Path, patience: int) -> None:
    program = (
        COLLECTIVE + "if rank == 3:\n    raise ValueError('坏数据 第3行')\ndist.all_reduce(torch.ones(1))\n"
    )
    run = FaultyRun(lab, lab_path, program)
    run.wait_up()
    wait_first_exit(run)
    _, took = run.wait_end(patience * PROCESS_S)
    record("a rank raises in the middle of a collective", took, PROCESS_S)
    run.check(1, "rank_failed", r"\Arank 3 on node002 failed: ValueError: 坏数据 第3行", **RANK_3)


@patience
def test_an_abort_while_others_sit_in_a_collective(lab: Lab, lab_path: Path, patience: int) -> None:
    run = FaultyRun(lab, lab_path, COLLECTIVE + "rank == 3 and os.abort()\ndist.all_reduce(torch.ones(1))\n")
    run.wait_up()
    wait_first_exit(run)
    _, took = run.wait_end(patience * PROCESS_S)
    record("os.abort in the middle of a collective", took, PROCESS_S)
    run.check(134, "rank_failed", r"\Arank 3 on node002 failed: killed by SIGABRT", **RANK_3)


# ---- the head is gone


@patience
def test_the_head_killed_leaves_nothing(lab: Lab, lab_path: Path, patience: int) -> None:
    run = FaultyRun(lab, lab_path, STRAY + DEAF)
    run.wait_up()
    run.signal(signal.SIGKILL)
    code, took = run.wait_end(patience * PROCESS_S)
    record("head killed -9", took, PROCESS_S)
    assert code == -signal.SIGKILL


def test_a_head_that_was_stopped_for_too_long_says_so(lab: Lab, lab_path: Path) -> None:
    """Nothing is left on the nodes meanwhile; the head itself learns of it when it goes on."""
    run = FaultyRun(lab, lab_path, DEAF, "--lost-after", "1")
    run.wait_up()
    process = next(process for process in run.processes(1, "dcu-launch") if "program.py" in process.cmdline)
    process.kill(signal.SIGSTOP)
    deadline = time.monotonic() + 3 * (1 + ASKED_S)
    while left := [
        p for p in lab.leftover(2) if not p.cmdline.startswith("sshd")
    ]:  # which waits for the head to close
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    process.kill(signal.SIGCONT)
    run.wait_end(3 * PROCESS_S)
    run.check(5, "node_lost", "lost node001: the agent ended", "lost node002: the agent ended")


# ---- a node is gone


def lose(lab: Lab, lab_path: Path, how: str, lost_after: int, limit_s: float) -> None:
    run = FaultyRun(lab, lab_path, STRAY + DEAF, "--lost-after", str(lost_after))
    run.wait_up()
    if how == "power":
        lab.kill(2)
    elif how == "stopped, then power":
        for process in [*run.processes(2, "program.py"), *run.processes(2, "sh -c"), run.keeper(2)]:
            process.kill(signal.SIGSTOP)
        time.sleep(lost_after / 2)
        lab.kill(2)
    else:
        lab.cut(2)
    begun = time.monotonic()
    code = run.head.wait(limit_s)
    lab.wait_gone(1, within_s=max(0.2, limit_s - (time.monotonic() - begun)))
    took = time.monotonic() - begun
    if how == "cable":
        # the cut host ends its own ranks, and all that they started, by itself
        while left := [p for word in ("program.py", "sleep 70") for p in run.processes(2, word)]:
            assert time.monotonic() - begun < limit_s, left
            time.sleep(0.05)
        took = max(took, time.monotonic() - begun)
        lab.heal(2)
    record(f"host 2 lost: {how} (--lost-after {lost_after})", took, lost_after + ASKED_S)
    assert code == 5
    run.check(5, "node_lost", r"lost node002: no answer for \d+ s", host="node002")
    assert "lost node002 (ranks 2-3): no answer" in run.said()


@pytest.mark.parametrize("how", ["power", "cable", "stopped, then power"])
def test_a_lost_node_is_named_and_the_rest_stopped(lab: Lab, lab_path: Path, how: str) -> None:
    lose(lab, lab_path, how, 2, 3 * (2 + ASKED_S))


@pytest.mark.soak
@pytest.mark.parametrize("time_", [1, 2, 3])
@pytest.mark.parametrize("how", ["power", "cable"])
def test_a_lost_node_with_the_default_limit(lab: Lab, lab_path: Path, how: str, time_: int) -> None:
    lose(lab, lab_path, how, 10, LOST_S)


def test_a_cable_that_is_put_back_in_time_loses_nothing(lab: Lab, lab_path: Path) -> None:
    run = FaultyRun(lab, lab_path, "up()\ntime.sleep(3)\n", "--lost-after", "10")
    run.wait_up()
    lab.cut(2)
    time.sleep(1)
    lab.heal(2)
    run.wait_end(30)
    run.check(0, "done")


def test_orphans_of_agent_and_guardian_killed_together_are_ended_by_the_next_run(
    lab: Lab, lab_path: Path
) -> None:
    run = FaultyRun(lab, lab_path, STRAY + ASLEEP)
    run.wait_up()
    keepers = [run.keeper(2), run.keeper(2, "dcu-guardian")]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in keepers:
            process.kill(number)
    assert run.head.wait(3 * PROCESS_S) == 5
    assert len(run.processes(2, "sleep 701")) == 4  # two ranks, a shell and its sleep each
    later = FaultyRun(lab, lab_path, "", name="later")
    later.wait_end(30)
    later.check(0, "done")
    # the four, and the look at torch beside the ranks if it had not ended yet
    assert re.search(r"node002: ended [4-6] processes that an earlier run had left", later.said()), (
        later.said()
    )


# ---- asked to stop: what ranks may do


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_every_rank_gets_one_term_and_its_save_is_whole(
    lab: Lab, lab_path: Path, number: signal.Signals
) -> None:
    program = """
got = []
signal.signal(signal.SIGTERM, lambda *_: got.append(1))
signal.signal(signal.SIGINT, lambda *_: got.append("INT"))
worker = subprocess.Popen([sys.executable, "-c", "import time; print('worker', flush=True); time.sleep(703)"])
up()
while not got:
    time.sleep(0.01)
with open(f"saved-{rank}", "w") as file:
    for part in range(25):
        print("part", part, file=file, flush=True)
        time.sleep(0.1)
assert worker.poll() is None, "the worker was signalled too"
print("whole", got, file=file if not file.closed else open(f"saved-{rank}", "a"))
sys.exit(143)
"""
    run = FaultyRun(lab, lab_path, program, "--grace", "30")
    run.wait_up()
    run.signal(number)
    time.sleep(1)
    run.signal(signal.SIGTERM)  # Slurm sends it again and again
    run.wait_end(30)
    run.check(STOPS[number], "stopped", f"stopped by {number.name} after asking the ranks")
    for rank in range(4):
        lines = (run.folder / f"saved-{rank}").read_text().splitlines()
        assert lines == [*(f"part {part}" for part in range(25)), "whole [1]"]


@patience
def test_eight_deaf_ranks_are_gone_in_one_grace_period(lab: Lab, lab_path: Path, patience: int) -> None:
    run = FaultyRun(lab, lab_path, DEAF, "--grace", str(GRACE), slots=4)
    run.wait_up()
    run.signal(signal.SIGTERM)
    _, took = run.wait_end(patience * (GRACE + ASKED_S))
    record("eight ranks that ignore SIGTERM", took, GRACE + ASKED_S)
    run.check(143, "stopped")


def test_stopping_one_of_two_runs_leaves_the_other(lab: Lab, lab_path: Path) -> None:
    first, second = (FaultyRun(lab, lab_path, STRAY + ASLEEP, name=name) for name in ("first", "second"))
    first.wait_up()
    second.wait_up()
    before = {host: len(lab.leftover(host)) for host in (1, 2)}
    first.signal(signal.SIGINT)
    assert first.head.wait(3 * PROCESS_S) == 130
    time.sleep(0.5)
    assert second.head.poll() is None
    strays = [len(second.processes(host, "sleep 701")) for host in (1, 2)]
    assert strays == [4, 4]
    assert all(len(lab.leftover(host)) < before[host] for host in (1, 2))
    second.signal(signal.SIGTERM)
    second.wait_end(3 * PROCESS_S)
    second.check(143, "stopped")
