"""A host that is this machine: the agent as a subprocess, without SSH. Also the stream of any local program."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.remote.bootstrap import shell_line

KEPT_STDERR = 16 * 1024
READ_BYTES = 256 * 1024
WRITE_LIMIT_S = 30.0
END_LIMIT_S = 1.0


class ProcessStream:
    """stdin and stdout of a subprocess as a stream; the end of its stderr is kept for ``last_words``.

    The process gets a session of its own: Ctrl-C in the terminal must reach the head alone.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        )
        streams = (self._process.stdin, self._process.stdout, self._process.stderr)
        self._writing, self._reading, self._complaints = (
            stream.fileno() if stream is not None else -1 for stream in streams
        )
        os.set_blocking(self._writing, False)
        self._stderr = b""
        self._poll = select.poll()
        self._poll.register(self._reading, select.POLLIN)
        self._poll.register(self._complaints, select.POLLIN)
        # held by whoever writes: a number that was closed meanwhile may belong to another file
        self._open = threading.Lock()
        self._is_closed = False

    def read(self, limit_s: float | None) -> bytes:
        """See ``Stream.read``."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while True:
            left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = [descriptor for descriptor, _ in self._poll.poll(left_ms)]
            if self._complaints in ready:
                self._keep_stderr()
            if self._reading in ready:
                return os.read(self._reading, READ_BYTES)
            if not ready:
                raise TimeoutError

    def _keep_stderr(self) -> bool:
        data = os.read(self._complaints, READ_BYTES)
        self._stderr = (self._stderr + data)[-KEPT_STDERR:]
        if not data:
            with contextlib.suppress(KeyError):  # its end was met before, by the other reader of it
                self._poll.unregister(self._complaints)
        return bool(data)

    def write(self, data: bytes) -> None:
        """See ``Stream.write``."""
        view = memoryview(data)
        with self._open:
            while view:
                if self._is_closed:
                    raise OSError("the line is closed")
                try:
                    view = view[os.write(self._writing, view) :]
                except BlockingIOError:
                    if not _is_ready(self._writing, select.POLLOUT, WRITE_LIMIT_S):
                        raise OSError("nobody reads at the other end") from None

    def close(self) -> None:
        """See ``Stream.close``."""
        with self._open:
            if not self._is_closed and self._process.stdin is not None:
                self._is_closed = True
                self._process.stdin.close()

    def last_words(self) -> str:
        """See ``Stream.last_words``."""
        code = self._wait()
        text = self._stderr.decode("utf-8", "replace").strip()[-1000:]
        return ", ".join(part for part in (f"exit code {code}" if code else "", text) if part)

    def _wait(self) -> int:
        """Its exit code, 0 while it runs on; then the rest of its stderr is there too."""
        try:
            code = self._process.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            code = 0
        while _is_ready(self._complaints, select.POLLIN, 0.0) and self._keep_stderr():
            pass
        return code

    def why_refused(self) -> UnreachableError | None:
        """See ``Stream.why_refused``."""
        return None


def _is_ready(descriptor: int, event: int, limit_s: float) -> bool:
    """By poll: select knows no descriptor above 1023, which many hosts reach."""
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(limit_s * 1000))


def open_local(host: Host) -> ProcessStream:
    """Run the bootstrap on this machine.

    Raises:
        OSError: no shell can be started.
    """
    return ProcessStream(["sh", "-c", shell_line(host.python)])
