"""Who has come to the rendezvous is seen from outside, by connections to the master's port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from launcher.node.joined import joined_ranks

CONNECT = """if 1:
    import socket, sys, time
    connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    print(flush=True)
    time.sleep(631)"""
IDLE = "import time; print(flush=True); time.sleep(631)"


@contextlib.contextmanager
def started(code: str, *words: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_rank_with_a_connection_to_the_port_has_joined(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as master, socket.socket(family) as other:
        for sock in (master, other):
            sock.bind((address, 0))
            sock.listen()
        port, elsewhere = (str(sock.getsockname()[1]) for sock in (master, other))
        with (
            started(CONNECT, address, port) as joined,
            started(CONNECT, address, elsewhere) as not_there,
            started(IDLE) as idle,
        ):
            ranks = {3: joined, 4: not_there, 5: idle, 6: 2**22 - 1}
            assert joined_ranks(ranks, int(port)) == {3}
            assert joined_ranks(ranks, int(elsewhere)) == {4}
            assert joined_ranks({5: idle}, int(port)) == set()
    assert joined_ranks({3: joined}, int(port)) == set()
