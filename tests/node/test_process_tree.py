"""Processes by pid and start time: kinship, variables, and ends that take effect or are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.node import process_tree
from tests.node.head import ROOT

FAMILY = """if 1:
    import subprocess, sys
    child = subprocess.Popen(['sh', '-c', 'setsid sleep 611 & sleep 612 & wait'])
    print('up', flush=True)
    child.wait()"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A process with a child and two grandchildren, one of them in a session of its own."""
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        process.stdout.readline()
        deadline = time.monotonic() + 10
        # forked is not enough: until its exec a child has the shell's name
        while not {"sleep 611", "sleep 612"} < names(process_tree.descendants(process.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        process_tree.kill_until_gone([(process.pid, process_tree.start_time(process.pid) or 0),
                                      *process_tree.descendants(process.pid)])  # fmt: skip


def names(found: list[process_tree.ProcessId]) -> set[str]:
    return {Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() for pid, _ in found}


def test_descendants_are_found_whatever_their_session(family: subprocess.Popen[bytes]) -> None:
    found = process_tree.descendants(family.pid)
    assert {"sleep 611", "sleep 612"} < names(found)
    assert len(found) == 3
    shell = next(pid for pid, _ in found if Path(f"/proc/{pid}/comm").read_text() == "sh\n")
    assert names(process_tree.descendants(shell)) == {"sleep 611", "sleep 612"}
    assert process_tree.descendants(family.pid, leave_out=[shell]) == []
    assert set(process_tree.descendants(shell, family.pid)) == set(found)


def test_a_zombie_is_no_living_process() -> None:
    with subprocess.Popen(["true"]) as process:
        deadline = time.monotonic() + 10
        while process_tree.start_time(process.pid) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert os.path.exists(f"/proc/{process.pid}")
        assert process.pid not in [pid for pid, _ in process_tree.descendants(os.getpid())]


def test_a_reused_pid_is_not_signalled() -> None:
    with subprocess.Popen(["sleep", "613"]) as process:
        started = process_tree.start_time(process.pid)
        assert not process_tree.send_signal((process.pid, started - 1), signal.SIGKILL)
        assert process.poll() is None
        assert process_tree.send_signal((process.pid, started), signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert not process_tree.send_signal((process.pid, started), signal.SIGKILL)


def test_a_name_with_blanks_and_brackets_is_read_well() -> None:
    code = "import time; open('/proc/self/comm', 'w').write('a) R 1 (b'); print(flush=True); time.sleep(614)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        found = dict(process_tree.descendants(os.getpid()))
        assert found[process.pid] == process_tree.start_time(process.pid)
        process.kill()


def test_processes_are_found_by_a_whole_variable_only() -> None:
    environments = [{"TOKEN": "abc"}, {"TOKEN": "abcd"}, {"XTOKEN": "abc"}, {}]
    started = [subprocess.Popen(["/bin/sleep", "615"], env=env) for env in environments]
    try:
        deadline = time.monotonic() + 10
        while process_tree.having_variable(b"TOKEN=abc") == [] and time.monotonic() < deadline:
            time.sleep(0.01)  # until the new program is in place
        assert [pid for pid, _ in process_tree.having_variable(b"TOKEN=abc")] == [started[0].pid]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_what_kill_does_not_end_in_time_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "send_signal", lambda process, number: process == (1, 2))
    before = time.monotonic()
    assert process_tree.kill_until_gone([(1, 2), (3, 4)], within_s=0.1) == [(1, 2)]
    assert time.monotonic() - before >= 0.1


def test_a_process_dies_with_the_parent_that_made_it() -> None:
    middle = f"""if 1:
        import os, sys, time
        sys.path.insert(0, {str(ROOT)!r})
        from launcher.node import process_tree
        parent = os.getpid()
        if os.fork() == 0:
            process_tree.die_with_parent(parent)
            print(os.getpid(), flush=True)
        time.sleep(616)"""
    with subprocess.Popen([sys.executable, "-c", middle], stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        assert process_tree.start_time(child) is not None
        process.kill()
        deadline = time.monotonic() + 10
        while process_tree.start_time(child) is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
