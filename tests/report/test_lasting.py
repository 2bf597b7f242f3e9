"""Streams that outlast their reader."""

import os
import subprocess
import sys

import pytest

from launcher.report.lasting import LastingStream

PROGRAM = """if 1:
    import os, sys
    from launcher.report.lasting import outlast_readers
    outlast_readers()
    import click
    sys.stdin.read(1)
    for _ in range(3):
        print('x' * 100_000)
        click.echo('to stderr', err=True)
        sys.stdout.flush()
    print('in the buffer at the end')
    sys.exit(7)"""


@pytest.mark.parametrize("how", ["pipe", "terminal"])
def test_a_program_whose_reader_is_gone_ends_as_it_would(how):
    reading, writing = os.pipe() if how == "pipe" else os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=writing, stderr=writing
    )
    os.close(writing)
    os.close(reading)
    process.communicate(b"x", timeout=30)
    assert process.returncode == 7


def test_a_stream_that_is_read_is_as_it_was(tmp_path):
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        stream = LastingStream(file)
        assert stream.write("words\n") == 6
        stream.flush()
        assert (stream.encoding, stream.isatty(), stream.fileno()) == ("utf-8", False, file.fileno())
    assert (tmp_path / "out").read_text() == "words\n"
    assert stream.write("closed") == 6
    stream.flush()
