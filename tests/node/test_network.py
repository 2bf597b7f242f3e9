"""Addresses of a node, and the port by which other nodes prove that they reach it."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

import pytest

from launcher.node import interfaces, network

NONCE = "n" * 32


def test_interfaces_are_those_of_the_system_and_loopback_comes_last() -> None:
    found = interfaces.interfaces()
    lines = subprocess.run(
        ["ip", "-o", "addr"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    fields = [line.split() for line in lines if "fe80:" not in line and "tentative" not in line]
    known = {(words[1], words[3].partition("/")[0]) for words in fields}
    assert {(entry["name"], entry["address"]) for entry in found} == known
    loopback = [interfaces._is_loopback(entry["address"]) for entry in found]
    assert loopback == sorted(loopback)
    assert ("lo", "127.0.0.1") in known
    assert interfaces.interface_of("127.0.0.1") == "lo"
    assert interfaces.interface_of("203.0.113.9") is None


@pytest.mark.parametrize(
    ("value", "address"),
    [
        ("10.0.0.9 51000 10.0.0.1 22", "10.0.0.1"),
        ("fd00::9 51000 fd00::1 22", "fd00::1"),
        ("", None),
        ("x y", None),
    ],
)
def test_the_address_by_which_the_head_came_in(
    monkeypatch: pytest.MonkeyPatch, value: str, address: str | None
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", value)
    assert interfaces.session_address() == address


def test_the_port_answers_the_nonce_and_is_free_afterwards() -> None:
    port = network.MasterPort()
    answer = network.reach(["127.0.0.1", "::1"], port.port, NONCE)
    assert answer == {"reached": [["127.0.0.1", "127.0.0.1", "lo"], ["::1", "::1", "lo"]], "failed": {}}
    with pytest.raises(OSError, match="Address already in use"):
        network.MasterPort(port.port)
    descriptors = len(os.listdir("/proc/self/fd"))
    port.close()
    assert len(os.listdir("/proc/self/fd")) < descriptors
    again = network.MasterPort(port.port)
    assert again.port == port.port
    again.close()


def test_unreached_addresses_are_named_with_the_reason_side_by_side() -> None:
    port = network.MasterPort()
    with socket.socket() as other:
        other.bind(("127.0.0.2", 0))
        assert network.reach(["127.0.0.1"], other.getsockname()[1], NONCE) == {
            "reached": [],
            "failed": {"127.0.0.1": "Connection refused"},
        }
    assert (
        network.reach(["no-such-host.invalid", "127.0.0.1"], port.port, NONCE)["reached"][0][0] == "127.0.0.1"
    )
    port.close()


def test_another_program_on_that_port_is_not_the_master() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()

        def answer() -> None:
            connection, _ = other.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and so on\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        failed = network.reach(["127.0.0.1"], other.getsockname()[1], NONCE)["failed"]
        thread.join()
    assert failed == {"127.0.0.1": "another program answers there"}


def test_a_stranger_that_says_nothing_keeps_neither_nodes_nor_the_agent_waiting() -> None:
    port = network.MasterPort()
    strangers = [socket.create_connection(("127.0.0.1", port.port)) for _ in range(5)]
    begun = time.monotonic()
    assert network.reach(["127.0.0.1"], port.port, NONCE)["failed"] == {}
    port.close()
    assert time.monotonic() - begun < network.REACH_LIMIT_S / 2
    for stranger in strangers:
        stranger.close()


def test_a_reserved_port_is_given_to_nobody_by_chance_and_rank_0_gets_it() -> None:
    port = network.MasterPort()
    port.reserve()
    assert network.reach(["127.0.0.1"], port.port, NONCE)["failed"] == {"127.0.0.1": "Connection refused"}
    with socket.socket() as chance, pytest.raises(OSError, match="Address already in use"):
        chance.bind(("127.0.0.1", port.port))
    for family, address in ((socket.AF_INET, network.ANY), (socket.AF_INET6, "::")):
        with socket.socket(family) as store:
            store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            store.bind((address, port.port))
            store.listen()
            socket.create_connection(("127.0.0.1", port.port)).close()
    port.close()


def test_a_store_goes_on_with_the_listening_socket() -> None:
    port = network.MasterPort()
    descriptor = port.take()
    port.close()
    with socket.socket(fileno=descriptor) as listening:
        client = socket.create_connection(("127.0.0.1", port.port))
        connection, _ = listening.accept()
        connection.sendall(b"from the store")
        assert client.recv(64) == b"from the store"
        connection.close()
        client.close()
