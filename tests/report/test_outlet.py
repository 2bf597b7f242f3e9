from __future__ import annotations

import fcntl
import io
import os
import pty
import termios
import time
from collections.abc import Iterator

import pytest

from launcher.report import outlet as outlet_module
from launcher.report.outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, io.TextIOWrapper]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        yield reading, stream
    os.close(reading)


def read_all(descriptor: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(descriptor, 65536)
    return data


def test_text_arrives_whole_and_in_order(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reading, stream = pipe
    outlet = Outlet(stream)
    text = "".join(f"line {number} 坏\n" for number in range(5000))
    for line in text.splitlines(keepends=True):
        outlet.write(line)
    assert read_all(reading, len(text.encode())).decode() == text
    assert outlet.close(5.0)


def test_writing_never_waits_for_a_stream_that_takes_nothing(pipe: tuple[int, io.TextIOWrapper]) -> None:
    reading, stream = pipe
    outlet = Outlet(stream)
    start = time.monotonic()
    for _ in range(100):
        outlet.write("x" * 9999 + "\n")
    assert not outlet.drain(0.05)
    assert outlet.is_stalled
    assert time.monotonic() - start < 2.0
    assert read_all(reading, 1_000_000) == (b"x" * 9999 + b"\n") * 100
    assert outlet.close(5.0)


def test_what_a_stalled_stream_cannot_hold_is_counted(
    pipe: tuple[int, io.TextIOWrapper], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlet_module, "MAX_WAITING", 100_000)
    reading, stream = pipe
    outlet = Outlet(stream)
    for _ in range(30):
        outlet.write("y" * 9999 + "\n")
    read_all(reading, 100_000)
    assert outlet.drain(5.0)
    outlet.write("later\n")
    assert outlet.close(5.0)
    assert os.read(reading, 4096).decode() == (
        "dcu-launch: 20 lines are not shown here, the logs hold them\nlater\n"
    )


def test_a_terminal_stopped_by_ctrl_s_does_not_stop_the_head() -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        outlet = Outlet(stream)
        termios.tcflow(stream.fileno(), termios.TCOOFF)
        outlet.write("held\n")
        assert not outlet.drain(0.2)
        termios.tcflow(stream.fileno(), termios.TCOON)
        assert outlet.close(5.0)
        assert os.read(master, 100) == b"held\r\n"
    os.close(master)


def test_a_broken_pipe_is_borne() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        outlet = Outlet(stream)
        outlet.write("x\n")
        assert outlet.drain(5.0)
        assert outlet.is_broken
        outlet.write("y\n")
        assert outlet.close(5.0)


def test_a_stream_in_memory_is_written_at_once() -> None:
    stream = io.StringIO()
    outlet = Outlet(stream)
    outlet.write("a 坏\n")
    assert stream.getvalue() == "a 坏\n"
    stream.close()
    outlet.write("b\n")
    assert outlet.is_broken
    assert outlet.close(1.0)


def test_an_encoding_that_lacks_a_character_gets_it_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Outlet(stream).write("坏 \udcff\n")
    assert raw.getvalue() == b"\\u574f \\udcff\n"


def test_no_descriptor_is_left_open(pipe: tuple[int, io.TextIOWrapper]) -> None:
    _, stream = pipe
    before = len(os.listdir("/proc/self/fd"))
    for text in ("", "x\n"):
        outlet = Outlet(stream)
        outlet.write(text)
        assert outlet.close(5.0)
    assert len(os.listdir("/proc/self/fd")) == before
