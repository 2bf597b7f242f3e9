"""A host that is this machine: the agent as a subprocess, without SSH. Also the stream of any local program."""

from __future__ import annotations

import os
import select
import subprocess
import threading
from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.remote.bootstrap import shell_line

KEPT_STDERR = 16 * 1024
WRITE_LIMIT_S = 30.0


class ProcessStream:
    """stdin and stdout of a subprocess as a stream; its stderr is kept for ``last_words``.

    The process gets a session of its own: Ctrl-C in the terminal must reach the head alone.
    """

    def __init__(self, argv: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=env,
        )
        if self._process.stdin is None or self._process.stdout is None or self._process.stderr is None:
            raise OSError("no pipes to the process")
        self._reading = self._process.stdout.fileno()
        self._writing = self._process.stdin.fileno()
        self._stderr = b""
        os.set_blocking(self._writing, False)
        self._stderr_thread = threading.Thread(target=self._keep_stderr, daemon=True)
        self._stderr_thread.start()

    def _keep_stderr(self) -> None:
        descriptor = self._process.stderr.fileno()  # type: ignore[union-attr]  # checked in __init__
        while data := os.read(descriptor, 4096):
            self._stderr = (self._stderr + data)[-KEPT_STDERR:]

    def read(self, limit_s: float | None) -> bytes:
        """See ``Stream.read``."""
        if limit_s is not None and not select.select([self._reading], [], [], limit_s)[0]:
            raise TimeoutError
        return os.read(self._reading, 256 * 1024)

    def write(self, data: bytes) -> None:
        """See ``Stream.write``."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._writing, view) :]
            except BlockingIOError:
                if not select.select([], [self._writing], [], WRITE_LIMIT_S)[1]:
                    raise OSError("nobody reads at the other end") from None

    def close(self) -> None:
        """See ``Stream.close``."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def last_words(self) -> str:
        """See ``Stream.last_words``."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            code = 0
        self._stderr_thread.join(0.5)
        text = self._stderr.decode("utf-8", "replace").strip()[-1000:]
        return ", ".join(part for part in (f"exit code {code}" if code else "", text) if part)


def open_local(host: Host) -> ProcessStream:
    """Run the bootstrap on this machine.

    Raises:
        OSError: no shell can be started.
    """
    return ProcessStream(["sh", "-c", shell_line(host.python)])
