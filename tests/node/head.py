"""The head's end of one real agent, over pipes: what a session does, without SSH. For tests of the agent."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from launcher.node import wire

ROOT = Path(__file__).resolve().parents[2]
_AGENT = "import sys; sys.path.insert(0, sys.argv[1]); from launcher.node.agent import main; {}; main(*sys.argv[1:])"
PING_EVERY_S = 0.5


class Head:
    """Starts an agent and speaks with it; pings it as a head does.

    Args:
        folder: the agent's working folder, temporary folder and place of logs.
        pings: False for a head that falls silent at once.
        before: what the agent's process runs first, to shorten what it waits for.

    Attributes:
        arrived: all messages so far; output of ranks is in ``output``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        pings: bool = True,
        before: str = "pass",
    ) -> None:
        self.folder = folder
        self.token = f"{os.getpid():08x}{time.monotonic_ns():024x}"
        self.arrived: list[dict[str, Any]] = []
        self.output: dict[int, bytearray] = {}
        self.at_end = False
        self.stderr = folder / "agent.stderr"
        self._taken = 0
        self._reader = wire.FrameReader()
        self._lock = threading.Lock()
        with open(self.stderr, "ab") as stderr:
            self.process = subprocess.Popen(
                [python, "-u", "-c", _AGENT.format(before), str(ROOT), self.token],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, "TMPDIR": str(folder), **(env or {})},
                bufsize=0,
            )
        self._pinging = threading.Event()
        if pings:
            self._pinging.set()
            threading.Thread(target=self._ping, daemon=True).start()

    # ---- the agent's processes

    @property
    def guardian(self) -> int:
        """The pid of what was started."""
        return self.process.pid

    @property
    def agent(self) -> int:
        """The pid of the guardian's child."""
        path = Path(f"/proc/{self.guardian}/task/{self.guardian}/children")
        for _ in range(500):
            pids = path.read_text().split()
            if pids:
                return int(pids[0])
            time.sleep(0.01)
        raise AssertionError(f"no agent: {self.stderr.read_text()}")

    # ---- words

    def send(self, kind: str, **fields: Any) -> None:
        """One message to the agent; an agent that is gone misses it."""
        with self._lock, contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(wire.pack_message({"kind": kind, **fields}))

    def fall_silent(self) -> None:
        """Send no more pings."""
        self._pinging.clear()

    def _ping(self) -> None:
        while self._pinging.is_set() and self.process.poll() is None:
            self.send("ping")
            time.sleep(PING_EVERY_S)

    def hang_up(self) -> None:
        """Close the agent's stdin."""
        self.fall_silent()
        with self._lock:
            self.process.stdin.close()

    def read(self, limit_s: float) -> bool:
        """Take in what comes within some time; False when nothing did."""
        if self.at_end or not select.select([self.process.stdout], [], [], max(0.0, limit_s))[0]:
            return False
        data = self.process.stdout.read(1 << 20)
        if not data:
            self.at_end = True
            return False
        for frame in self._reader.feed(data):
            if isinstance(frame, tuple):
                self.output.setdefault(frame[0], bytearray()).extend(frame[1])
            elif frame["kind"] != "pong":
                self.arrived.append(frame)
        return True

    def wait_for(self, kind: str, within_s: float = 20.0) -> dict[str, Any]:
        """The next message of a kind; others stay in ``arrived``."""
        deadline = time.monotonic() + within_s
        while True:
            while self._taken < len(self.arrived):
                self._taken += 1
                if self.arrived[self._taken - 1]["kind"] == kind:
                    return self.arrived[self._taken - 1]
            if self.at_end or not self.read(deadline - time.monotonic()):
                raise AssertionError(
                    f"no {kind} within {within_s} s (at end: {self.at_end}); came {self.arrived}; {self.output}; "
                    f"stderr: {self.stderr.read_text()}"
                )

    def wait_for_output(self, text: bytes, rank: int = 0, within_s: float = 20.0) -> None:
        """Wait until a rank has said something."""
        deadline = time.monotonic() + within_s
        while text not in self.output.get(rank, b""):
            if not self.read(deadline - time.monotonic()):
                raise AssertionError(f"rank {rank} has not said {text!r}; {self.output}, {self.arrived}")

    def all_of(self, kind: str) -> list[dict[str, Any]]:
        """All messages of a kind so far."""
        return [message for message in self.arrived if message["kind"] == kind]

    # ---- the usual course

    def prepare(self, **fields: Any) -> dict[str, Any]:
        """The node's report."""
        message = {"python": sys.executable, "workdir": str(self.folder), "start": "spawn", **fields}
        self.send("prepare", **message)
        return self.wait_for("report")["report"]

    def order(
        self, program: str, *, ranks: Sequence[int] = (0, 1), wait: bool = True, **fields: Any
    ) -> dict[str, Any]:
        """Start ranks that run a Python program; answers ``started``."""
        script = self.folder / "program.py"
        script.write_text(program)
        arguments = fields.pop("arguments", [])
        entries = [
            {"rank": rank, "local_rank": index, "variables": {"RANK": str(rank)}, "arguments": []}
            for index, rank in enumerate(ranks)
        ]
        message = {
            "argv": [sys.executable, "-u", str(script), *arguments],
            "ranks": entries,
            "variables": {"WORLD_SIZE": str(len(ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "defaults": {},
            "unset": [],
            "workdir": str(self.folder),
            "log_dir": str(self.folder / "logs"),
            "start": "spawn",
            "target": {"kind": "script", "name": str(script), "arguments": arguments},
            "host_store": False,
            "stream_all": False,
            "recipe": None,
            **fields,
        }  # fmt: skip
        self.send("order", **message)
        return self.wait_for("started") if wait else {}

    def log(self, rank: int) -> bytes:
        """A rank's log file."""
        return (self.folder / "logs" / f"rank-{rank:05d}.log").read_bytes()

    def exits(self) -> dict[int, int]:
        """Status by rank, so far."""
        return {message["rank"]: message["status"] for message in self.all_of("rank_exit")}

    def end(self, within_s: float = 10.0) -> int:
        """Have the agent end; its exit code."""
        self.send("end")
        self.wait_for("ended", within_s)
        return self.wait_gone(within_s)

    def wait_gone(self, within_s: float) -> int:
        """Wait for the end of agent and guardian; returns the exit code."""
        deadline = time.monotonic() + within_s
        while self.read(deadline - time.monotonic()):
            pass
        return self.process.wait(max(0.1, deadline - time.monotonic()))

    def close(self) -> None:
        """End what is left, also after a failure."""
        self.fall_silent()
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()
        try:
            self.process.wait(10.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def is_running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until_gone(pids: Sequence[int], within_s: float) -> float:
    """Wait until none of them runs; seconds that it took."""
    start = time.monotonic()
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() - start < within_s, f"still running after {within_s} s: {left}"
        time.sleep(0.01)
    return time.monotonic() - start


@contextlib.contextmanager
def open_head(folder: Path, **options: Any) -> Iterator[Head]:
    """A head and its agent, both ended on the way out."""
    head = Head(folder, **options)
    try:
        yield head
    finally:
        head.close()
