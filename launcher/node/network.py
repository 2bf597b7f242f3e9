"""The proof that other nodes reach the master's port before a rank starts. Runs in the agent.

``listen``: the master node opens a port and answers a nonce on it. ``reach``: every other node tries the candidate
addresses in order, and tells which one answered and by which of its own interfaces it got there.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from .interfaces import interface_of

REACH_LIMIT_S = 5.0
ANY = "0.0.0.0"  # noqa: S104  every NIC: which one serves is to be found out


class MasterPort:
    """A free port of the master node that answers a nonce, so that other nodes can prove that they reach it.

    Args:
        port: a wanted port; 0 lets the kernel choose.

    Raises:
        OSError: the wanted port is taken.
    """

    def __init__(self, port: int = 0) -> None:
        # named even when the kernel has chosen it: only a port that was asked for by number can be reserved
        self.port = port or _free_port()
        self._sockets = [_listen(socket.AF_INET, ANY, self.port)]
        if socket.has_ipv6:
            try:
                self._sockets.append(_listen(socket.AF_INET6, "::", self.port))
            except OSError:
                pass
        self._wake_reading, self._wake_writing = os.pipe()
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        while True:
            waited_on: List[Union[socket.socket, int]] = [*self._sockets, self._wake_reading]
            ready, _, _ = select.select(waited_on, [], [])
            if self._wake_reading in ready:
                return
            for sock in [sock for sock in self._sockets if sock in ready]:
                try:
                    connection, _ = sock.accept()
                except OSError:
                    continue
                # a stranger that connects and says nothing must not keep the nodes waiting
                threading.Thread(target=_answer_one, args=(connection,), daemon=True).start()

    def _stop_answering(self) -> None:
        if self._thread.is_alive():
            os.write(self._wake_writing, b"w")
            self._thread.join(REACH_LIMIT_S)

    def reserve(self) -> None:
        """Listen no longer, but stay bound until ``close``: nobody is given the port by chance in the seconds until rank 0
        binds it, which is let in since both set SO_REUSEADDR, as every store does.
        """
        self._stop_answering()
        for sock in self._sockets:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def take(self) -> int:
        """The listening descriptor of the port, for a store that goes on with it: who connects meanwhile only waits."""
        self._stop_answering()
        return os.dup(self._sockets[0].fileno())

    def close(self) -> None:
        """Give the port free, for rank 0 to bind."""
        self._stop_answering()
        for sock in self._sockets:
            sock.close()
        os.close(self._wake_reading)
        os.close(self._wake_writing)


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((ANY, 0))
        return int(sock.getsockname()[1])


def _answer_one(connection: socket.socket) -> None:
    with connection:
        try:
            connection.settimeout(REACH_LIMIT_S)
            connection.sendall(b"dcu-launch " + connection.recv(64))
        except OSError:
            pass


def _listen(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        sock.bind((address, port))
        sock.listen(256)
    except OSError:
        sock.close()
        raise
    return sock


def reach(candidates: Sequence[str], port: int, nonce: str) -> Dict[str, Any]:
    """Try the master's addresses side by side; the earliest in the list that answers wins.

    Returns:
        ``reached``: list of (address, own address, own interface) in the order of ``candidates``; ``failed``: why the
        others did not answer, by address.
    """
    results: Dict[str, Tuple[Optional[str], str]] = {}
    threads = [
        threading.Thread(target=_try_address, args=(address, port, nonce, results), daemon=True)
        for address in candidates
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(REACH_LIMIT_S + 1)
    reached, failed = [], {}
    for address in candidates:
        own, why = results.get(address, (None, "no answer within %d s" % REACH_LIMIT_S))
        if own is None:
            failed[address] = why
        else:
            reached.append([address, own, interface_of(own) or ""])
    return {"reached": reached, "failed": failed}


def _try_address(address: str, port: int, nonce: str, results: Dict[str, Tuple[Optional[str], str]]) -> None:
    try:
        with socket.create_connection((address, port), timeout=REACH_LIMIT_S) as connection:
            connection.sendall(nonce.encode())
            answer = b""
            while len(answer) < len(nonce) + 11:
                piece = connection.recv(64)
                if not piece:
                    break
                answer += piece
            own = str(connection.getsockname()[0])
        good = answer == b"dcu-launch " + nonce.encode()
        results[address] = (own, "") if good else (None, "another program answers there")
    except OSError as error:
        results[address] = (None, error.strerror or str(error))
