"""What other processes ask of a run reaches its inbox, once, whoever asks."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.launch import asking
from launcher.launch.asking import Ear, ask
from launcher.remote.session import Inbox


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def ear(tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    monkeypatch.setattr(asking, "LOOK_EVERY_S", 0.02)
    (tmp_path / "STOP").touch()  # of an earlier run
    (tmp_path / "asked.jsonl").write_text('{"id": "1", "want": "stop", "by": "x"}\n')
    ear = Ear(tmp_path, inbox)
    yield ear
    ear.end()


def wait(found: Callable[[], object]) -> object:
    deadline = time.monotonic() + 5
    while not (value := found()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return value


def test_a_save_is_kept_until_it_can_be_passed_on(ear: Ear, tmp_path: Path, inbox: Inbox) -> None:
    identities = [ask(tmp_path, "save"), ask(tmp_path, "save")]
    first = wait(ear.take_save)
    second = wait(ear.take_save)
    assert [first.id, second.id] == identities
    assert first.by.count("@") == 1
    assert inbox.get(0) is None


def test_a_stop_is_a_signal_with_a_name(ear: Ear, tmp_path: Path, inbox: Inbox) -> None:
    ask(tmp_path, "stop")
    arrival = inbox.get(5)
    assert arrival.signal_number == signal.SIGTERM
    assert arrival.frame["by"].startswith("dcu-launch stop (")
    assert inbox.get(0.1) is None


def test_a_stop_at_once_is_ctrl_c_twice(ear: Ear, tmp_path: Path, inbox: Inbox) -> None:
    ask(tmp_path, "stop", now=True)
    assert [inbox.get(5).signal_number, inbox.get(1).signal_number] == [signal.SIGINT] * 2


def test_half_a_line_waits_for_its_end_and_nonsense_is_passed_over(
    ear: Ear, tmp_path: Path, inbox: Inbox
) -> None:
    with open(tmp_path / "asked.jsonl", "ab", buffering=0) as file:
        file.write(b'nonsense\n{"want": "stop"}\n{"id": "7", "want": "dance", "by": "x"}\n{"id": "8", "wa')
        time.sleep(0.1)
        assert ear.take_save() is None
        file.write(b'nt": "save", "by": "x"}\n')
    assert wait(ear.take_save).id == "8"
    assert inbox.get(0) is None


def test_files_named_save_and_stop_ask_once_and_go(ear: Ear, tmp_path: Path, inbox: Inbox) -> None:
    assert inbox.get(0.1) is None
    (tmp_path / "SAVE").touch()
    assert wait(ear.take_save).by == "the file SAVE"
    (tmp_path / "STOP").touch()
    arrival = inbox.get(5)
    assert (arrival.signal_number, arrival.frame["by"]) == (signal.SIGTERM, "the file STOP")
    assert wait(lambda: not (tmp_path / "STOP").exists())
    assert ear.take_save() is None


def test_after_the_end_nothing_can_be_asked(tmp_path: Path, inbox: Inbox) -> None:
    ear = Ear(tmp_path, inbox)
    assert (tmp_path / "asked.jsonl").stat().st_mode & 0o777 == 0o600
    ear.end()
    with pytest.raises(FileNotFoundError):
        ask(tmp_path, "stop")
