"""Logs are whole and nobody waits for the disk; the tail is the end, and only that."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from launcher.node import output
from launcher.node.output import TAIL_BYTES, LogWriter, Tail


def finish(logs: LogWriter) -> str:
    logs.finish()
    deadline = time.monotonic() + 10
    while not logs.is_finished:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return logs.fault()


def test_files_hold_every_byte_in_order(tmp_path: Path) -> None:
    logs = LogWriter()
    paths = [str(tmp_path / "new" / f"{name}.log") for name in "ab"]
    for number in range(1000):
        for path in paths:
            logs.write(path, b"%d\xff\0\n" % number)
    assert finish(logs) == ""
    for path in paths:
        assert Path(path).read_bytes() == b"".join(b"%d\xff\0\n" % number for number in range(1000))
    assert Path(paths[0]).stat().st_mode & 0o777 == 0o644


def test_a_writer_that_had_nothing_to_write_is_finished() -> None:
    logs = LogWriter()
    assert logs.is_finished
    assert finish(logs) == ""


def test_a_file_that_cannot_be_written_is_told_and_the_others_are_whole(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    logs = LogWriter()
    logs.write(str(tmp_path / "file" / "x.log"), b"lost")
    logs.write(str(tmp_path / "good.log"), b"kept")
    assert finish(logs) == f"{tmp_path}/file/x.log: File exists"
    assert (tmp_path / "good.log").read_bytes() == b"kept"


def test_a_disk_that_stalls_is_not_waited_for_and_told(tmp_path: Path) -> None:
    """A FIFO that nobody reads: opening it for writing waits, as a dead NFS server makes one wait."""
    fifo = tmp_path / "stalled.log"
    os.mkfifo(fifo)
    logs = LogWriter()
    begun = time.monotonic()
    for _ in range(1 + output.QUEUE_BYTES // (1 << 20)):
        logs.write(str(fifo), b"x" * (1 << 20))
    logs.finish()
    assert time.monotonic() - begun < 5
    assert logs.full
    assert not logs.is_finished
    assert logs.fault() == f"the disk has not taken the last {65 << 20} bytes"
    taken = []
    reader = threading.Thread(target=lambda: taken.append(len(fifo.read_bytes())))
    reader.start()
    reader.join(20)
    assert taken == [65 << 20]
    assert finish(logs) == ""
    assert not logs.full


def test_the_tail_is_the_end_without_a_first_line_cut_in_two() -> None:
    tail = Tail()
    tail.add(b"short")
    assert tail.text() == "short"
    for number in range(10_000):
        tail.add(b"line %06d\n" % number)
    text = tail.text()
    assert text.startswith("line ")
    assert text.endswith("line 009999\n")
    assert TAIL_BYTES - 12 <= len(text) <= TAIL_BYTES
    tail.add(b"\xff" * TAIL_BYTES)
    assert tail.text() == "�" * TAIL_BYTES


def test_the_beginning_of_a_traceback_longer_than_the_tail_is_kept() -> None:
    tail = Tail()
    tail.add(b"step 1\nTraceback (most recent call la")
    tail.add(b'st):\n  File "train.py", line 3, in <module>\nValueError: bad row ' + b"x" * 3_000_000)
    tail.add(b"\nthe end\n")
    text = tail.text()
    assert text.startswith(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: bad row xxx'
    )
    assert text.endswith("\nthe end\n")
    assert len(text) < TAIL_BYTES
    tail.add(b"Traceback (most recent call last):\nKeyError: 'b'\n")
    assert tail.text().endswith("KeyError: 'b'\n")


@pytest.mark.parametrize(
    ("said", "ends"),
    [
        (b"Traceback (most recent call last):\n  File 'a', line 1\nValueError: why\n", True),
        (
            b"Traceback (most recent call last):\n  File 'a', line 1\ntorch.cuda.OutOfMemoryError: why\n\n",
            True,
        ),
        (b"Traceback (most recent call last):\n  File 'a', line 1\nKeyboardInterrupt\n", True),
        (b"Traceback (most recent call last):\n  File 'a', line 1\nValueError: why\ngoing on\n", False),
        (b"ValueError: why\n", False),
        (b"", False),
    ],
)
def test_a_traceback_that_was_the_last_word(said: bytes, ends: bool) -> None:
    tail = Tail()
    tail.add(said)
    assert tail.ends_in_error is ends
