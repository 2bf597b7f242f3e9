"""A session over real programs: the agent's first word among noise, what a host says instead, and how a line is lost."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.node import wire
from launcher.remote import session as session_module
from launcher.remote.local import ProcessStream, open_local
from launcher.remote.session import MAX_OUTPUTS, Arrival, Inbox, Session

TOKEN = "f" * 32
PING = {"kind": "ping"}


Start = Callable[..., Session]


@pytest.fixture
def streams() -> Iterator[list[ProcessStream]]:
    """Streams whose programs are ended, and pipes closed, after the test."""
    opened: list[ProcessStream] = []
    yield opened
    for stream in opened:
        stream.close()
        process = stream._process
        process.kill()
        process.wait(10)
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def start(streams: list[ProcessStream]) -> Start:
    """Opens a session over what a host answers, as a shell script."""

    def open_one(shell: str, inbox: Inbox | None = None) -> Session:
        streams.append(ProcessStream(["/bin/sh", "-c", shell]))
        session = Session(3, Host("node07"), streams[-1], inbox or Inbox())
        session.start(TOKEN, PING)
        return session

    return open_one


def say(*frames: bytes) -> str:
    """Words of a shell that print these bytes."""
    return f"{shlex.quote(sys.executable)} -c " + shlex.quote(
        f"import os; [os.write(1, part) for part in {list(frames)!r}]"
    )


def take(inbox: Inbox) -> Arrival:
    arrival = inbox.get(10)
    assert arrival is not None
    return arrival


def test_a_real_agent_answers_and_its_end_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, streams: list[ProcessStream]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # it has none of our code yet
    for brought in (True, False):
        inbox = Inbox()
        begun = time.monotonic()
        streams.append(open_local(Host("localhost")))
        session = Session(0, Host("localhost"), streams[-1], inbox)
        assert (tmp_path / ".cache").exists() is not brought
        session.start(TOKEN, PING)
        assert take(inbox) == Arrival(0, {"kind": "pong"})
        assert begun < session.heard <= time.monotonic()
        assert session.send({"kind": "end"})
        assert take(inbox) == Arrival(0, {"kind": "ended"})
        assert take(inbox) == Arrival(0, lost="the agent ended")
        session.close()


def test_noise_before_the_mark_is_passed_over_and_frames_right_behind_it_are_not_lost(start: Start) -> None:
    inbox = Inbox()
    noise = "yes \"$(printf 'welcome \\377')\" | head -30000; printf 'DCU-LAUNCHER is no mark\\nno newline'; "
    frames = wire.pack_message({"kind": "pong"}) + wire.pack_output(5, b"hello\n")
    session = start(noise + say(b"\nDCU-LAUNCH HAVE\n" + frames[:7], frames[7:]), inbox)
    assert take(inbox) == Arrival(3, {"kind": "pong"})
    assert take(inbox) == Arrival(3, (5, b"hello\n"))
    assert take(inbox) == Arrival(3, lost="the agent ended")
    session.close()


def test_the_code_is_sent_when_it_is_asked_for(start: Start) -> None:
    """Greeting: 64 + 32 letters, 8 of a length, a frame of 20 bytes; then twice 8 of a length and that many."""
    inbox = Inbox()
    program = (
        "import os, sys\nread = sys.stdin.buffer.read\nread(96); read(int(read(8), 16))\n"
        "os.write(1, b'\\nDCU-LAUNCH NEED\\n')\n"
        "compile(read(int(read(8), 16)), 'unpack', 'exec')\nzip = read(int(read(8), 16))\n"
        "sys.stderr.write('%s %d' % (zip[:2], len(zip) > 100000)); sys.exit(7)\n"
    )
    session = start(f"exec {shlex.quote(sys.executable)} -c {shlex.quote(program)}", inbox)
    assert take(inbox) == Arrival(3, lost="the agent ended (exit code 7, b'PK' 1)")
    session.close()


@pytest.mark.parametrize(
    ("shell", "message", "hint"),
    [
        ("echo; echo 'DCU-LAUNCH NONE /a python3'; exit 97", "node07: no Python found, tried /a python3", "name one: "),
        ("echo; echo 'DCU-LAUNCH OLD 2.7 /usr/bin/python'; exit 99",
         "node07: Python 2.7 /usr/bin/python is too old for the agent, 3.8 is the oldest", "name a newer one: "),
        ("exit 97", "node07: no Python found there", ""),
        ("exit 98", "node07: the code for the agent did not arrive whole", ""),
        ("exit 0", "node07: the shell there ended before Python started", ""),
        ("echo 'This account is closed'; exit 1",
         "node07: the shell there ended before Python started: exit code 1; it said: This account is closed", ""),
        ("echo 'no module' >&2; exit 5", "node07: the shell there ended before Python started: exit code 5, no module", ""),
        ("kill -9 $$", "node07: the shell there ended before Python started: exit code -9", ""),
    ],
)  # fmt: skip
def test_what_a_host_says_instead(start: Start, shell: str, message: str, hint: str) -> None:
    with pytest.raises(UnreachableError) as caught:
        start(shell)
    assert caught.value.message == message
    assert caught.value.hint.startswith(hint)
    assert bool(caught.value.hint) is bool(hint)


def test_a_host_that_says_nothing_is_given_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "START_LIMIT_S", 0.5)
    with pytest.raises(UnreachableError) as caught:
        start("echo press return to go on; exec sleep 60")
    assert caught.value.message == (
        "node07: no answer from Python there within 0 s; it said: press return to go on"
    )


def test_another_program_on_the_line_is_told_as_a_loss(start: Start) -> None:
    inbox = Inbox()
    session = start(say(b"\nDCU-LAUNCH HAVE\n", b"segmentation fault, says somebody\n"), inbox)
    arrival = take(inbox)
    assert arrival.lost
    assert (arrival.node, arrival.frame) == (3, None)
    session.close()


def test_after_the_line_broke_nothing_can_be_sent(start: Start) -> None:
    inbox = Inbox()
    session = start(say(b"\nDCU-LAUNCH HAVE\n"), inbox)
    assert take(inbox).lost == "the agent ended"
    assert session.send(PING) is False
    assert session.send_data(b"x") is False
    session.close()
    session.close()
    assert session.send(PING) is False


def test_output_waits_outside_and_signals_do_not() -> None:
    inbox = Inbox()
    put = threading.Event()

    def flood() -> None:
        for number in range(MAX_OUTPUTS + 1):
            inbox.put(Arrival(0, (number, b"")))
        put.set()

    threading.Thread(target=flood, daemon=True).start()
    assert not put.wait(0.3)
    inbox.put(Arrival(-1, signal_number=signal.SIGINT))
    assert inbox.get(0) == Arrival(0, (0, b""))
    assert put.wait(5)
    seen = []
    while (arrival := inbox.get(0)) is not None:
        seen.append(arrival)
    assert seen[-2:] == [Arrival(-1, signal_number=signal.SIGINT), Arrival(0, (MAX_OUTPUTS, b""))]
    assert len(seen) == MAX_OUTPUTS + 1
    assert inbox.get(0.01) is None
