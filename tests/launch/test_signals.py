"""Signals to the head: into the inbox, or left as they were found."""

from __future__ import annotations

import os
import signal
import time

import pytest

from launcher.launch.signals import REFUSAL, signals_to
from launcher.remote.session import Inbox

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


@pytest.fixture(autouse=True)
def default_handlers():
    before = {number: signal.getsignal(number) for number in (*ALL, signal.SIGTSTP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def arrived(inbox: Inbox) -> list[int]:
    time.sleep(0.01)
    return [arrival.signal_number for arrival in iter(lambda: inbox.get(0), None)]


@pytest.mark.parametrize("number", ALL)
def test_a_signal_arrives_each_time(number: signal.Signals) -> None:
    inbox = Inbox()
    before = signal.getsignal(number)
    with signals_to(inbox):
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert arrived(inbox) == [number, number]
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("number", [*ALL, signal.SIGTSTP])
def test_what_was_ignored_stays_ignored(number: signal.Signals) -> None:
    """nohup, and shells that start a job in the background."""
    signal.signal(number, signal.SIG_IGN)
    inbox = Inbox()
    with signals_to(inbox):
        os.kill(os.getpid(), number)
        assert arrived(inbox) == []
    assert signal.getsignal(number) == signal.SIG_IGN


def test_a_stop_from_the_terminal_is_answered_and_not_obeyed(capfd: pytest.CaptureFixture[str]) -> None:
    with signals_to(Inbox()):
        os.kill(os.getpid(), signal.SIGTSTP)
        time.sleep(0.01)
    assert capfd.readouterr().err == REFUSAL.decode()


def test_handlers_are_put_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in ALL]
    with pytest.raises(ZeroDivisionError), signals_to(Inbox()):
        _ = 1 / 0
    assert [signal.getsignal(number) for number in ALL] == before
