"""One srun for all nodes of a job, and over it a stream to each of them: no SSH between nodes. Runs on the head.

srun broadcasts its stdin: each packet names its node, and what is the same for all goes once. What comes back are lines
that name theirs (see ``launcher/node/relay.py``, whose source travels in srun's argument list).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import shlex
import struct
import subprocess
import threading
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from launcher.base.errors import UnreachableError
from launcher.hosts.host import Host
from launcher.hosts.slurm import expand_counts
from launcher.remote.bootstrap import interpreters, make_payload, program_source
from launcher.remote.local import ProcessStream

#: as in ``launcher/node/relay.py``
ALL = 0xFFFFFFFF
PACKET = struct.Struct(">IcI")
NAMES, DATA, CODE, CLOSE = b"N", b"D", b"C", b"E"
MORE, WHOLE, LAST, STEP = b"0", b"1", b"2", b"3"
END_LIMIT_S, LOST_LIMIT_S, SCANCEL_LIMIT_S = 2.0, 0.3, 5.0
#: of an agent's bytes, of 64 KiB at most, that wait for the head
MAX_PIECES = 64
#: the most of srun's own words in a message
WORDS_LIMIT = 1000


#: srun reads the job's own options from these, and they are about tasks that are not ours
_OF_THE_JOB = (
    "CPU_BIND", "CPUS_PER_GPU", "CPUS_PER_TASK", "CORE_SPEC", "DEPEND_TYPE", "DISTRIBUTION", "EXACT", "EXCLUSIVE",
    "GPU_BIND", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GRES", "HINT", "IMMEDIATE", "INPUT", "KILL_BAD_EXIT",
    "LABELIO", "MEM_BIND", "MEM_PER_CPU", "MEM_PER_GPU", "MULTI_PROG", "NTASKS", "NPROCS", "NTASKS_PER_CORE",
    "NTASKS_PER_GPU", "NTASKS_PER_NODE", "NTASKS_PER_SOCKET", "NTASKS_PER_TRES", "OPEN_MODE", "OVERCOMMIT", "PTY",
    "SPREAD_JOB", "STDERRMODE", "STDINMODE", "STDOUTMODE", "THREADS", "THREADS_PER_CORE", "TIMELIMIT", "TRES_BIND",
    "TRES_PER_TASK", "UNBUFFEREDIO", "WAIT", "WHOLE",
)  # fmt: skip


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The head's variables without the options of the job that srun would take for its own."""
    options = {f"{prefix}_{name}" for prefix in ("SLURM", "SRUN") for name in _OF_THE_JOB}
    return {name: value for name, value in environ.items() if name not in options}


def srun_argv(hosts: Sequence[Host], environ: Mapping[str, str]) -> list[str]:
    """The command line. What the job's own options say of tasks must not count here, so all of it is said anew."""
    count = len(hosts)
    words = [
        "srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1",
        f"--nodelist={','.join(host.name for host in hosts)}", "--overlap", "--kill-on-bad-exit=0", "--wait=0",
        "--mpi=none", "--export=ALL", "--input=all", "--job-name=dcu-launch",
    ]  # fmt: skip
    cpus = _cpus_per_node(environ)
    words += [f"--cpus-per-task={cpus}"] if cpus else []
    return [*words, "sh", "-c", relay_line(hosts[0].python)]


def _cpus_per_node(environ: Mapping[str, str]) -> int | None:
    """The fewest CPUs that the job has on one of its nodes: ``16(x2),8`` has 8."""
    return min(expand_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")), default=None)


@cache
def relay_line(python: str | None) -> str:
    """One line for ``sh`` that finds an interpreter and becomes the relay."""
    relay = Path(__file__).resolve().parent.parent / "node" / "relay.py"
    source = relay.read_text(encoding="ascii") + f"\nmain({program_source()!r})\n"
    packed = base64.b64encode(zlib.compress(source.encode("ascii"), 9)).decode("ascii")
    code = (
        "import sys;sys.path[:1]=[];import binascii,zlib;"
        f'exec(zlib.decompress(binascii.a2b_base64("{packed}")))'
    )
    find = (
        'for p in "$@"; do case $p in "~/"*) p=$HOME/${p#"~/"};; esac; '
        'command -v "$p" >/dev/null 2>&1 && exec "$p" -E -s -S -u -c "$0"; done; '
        'echo "dcu-launch: no Python found on $(hostname), tried $*" >&2; exit 97'
    )
    return " ".join(
        ["exec", "/bin/sh", "-c", *(shlex.quote(word) for word in (find, code, *interpreters(python)))]
    )


class SrunStep:
    """The step and its lines; streams are its parts.

    Args:
        hosts: nodes of this job.

    Raises:
        UnreachableError: there is no ``srun`` on this machine.
    """

    def __init__(self, hosts: Sequence[Host]) -> None:
        try:
            self._srun = _Srun(srun_argv(hosts, os.environ), srun_environment(os.environ))
        except FileNotFoundError:
            raise UnreachableError(
                "srun is not on PATH", "load Slurm's commands (module load slurm), or --transport ssh"
            ) from None
        self._streams = [SrunStream(self, node, host.name) for node, host in enumerate(hosts)]
        self._open = set(range(len(hosts)))
        self._lock = threading.Lock()
        self._has_code = self._is_told = False
        self._name = ""
        self._send(ALL, NAMES, ",".join(host.name for host in hosts).encode("ascii"))
        threading.Thread(target=self._read, daemon=True, name="read-srun").start()

    def stream(self, node: int) -> SrunStream:
        """The stream to one node."""
        return self._streams[node]

    def send(self, node: int, data: bytes) -> None:
        """Send bytes to a node's agent; the agent's code goes to all that want it, once."""
        if not make_payload().is_delivery(data):
            self._send(node, DATA, data)
            return
        with self._lock:
            is_first, self._has_code = not self._has_code, True
        if is_first:
            self._send(ALL, CODE, data)

    def _send(self, node: int, kind: bytes, payload: bytes) -> None:
        self._srun.write(PACKET.pack(node, kind, len(payload)) + payload)

    def close(self, node: int) -> None:
        """Close the line to a node; after the last one srun ends, if need be by our hand."""
        with self._lock:
            if node not in self._open:
                return
            self._open.discard(node)
            is_last = not self._open
        with contextlib.suppress(OSError):
            self._send(node, CLOSE, b"")
        if is_last:
            # a node that has not said its last is gone, and srun would wait for it
            are_over = all(stream.is_over for stream in self._streams)
            self._srun.end(END_LIMIT_S if are_over else LOST_LIMIT_S)

    def last_words(self) -> str:
        """What srun said, and its exit code when it has one."""
        return self._srun.last_words()[-WORDS_LIMIT:]

    def tell_words(self) -> str:
        """srun's own complaints, for one message of all its nodes; empty for the others."""
        with self._lock:
            is_first, self._is_told = not self._is_told, True
        lines = self.last_words().split("\n") if is_first else []
        return "\n".join(line for line in lines if "slurmstepd-" not in line)

    def _read(self) -> None:
        """Lines to the streams they belong to; other lines are a program's on a node, or srun's, and go by."""
        kept = b""
        why = ""
        try:
            while data := self._srun.read(None):
                *lines, kept = (kept + data).split(b"\n")
                for line in lines:
                    self._sort(line)
        except OSError as error:
            why = f": {error}"
        is_early = not all([stream.end(OSError(f"srun ended{why}")) for stream in self._streams])
        if is_early and self._open:
            self._end_step()

    def _sort(self, line: bytes) -> None:
        words = line.split(b" ")
        if len(words) != 4 or not words[0].isdigit() or not words[1].isdigit():
            return
        node, sequence = int(words[0]), int(words[1])
        if node >= len(self._streams):
            return
        if words[2] == STEP:
            self._name = binascii.a2b_base64(words[3]).decode("ascii")
        else:
            self._streams[node].take(sequence, words[2], words[3])

    def _end_step(self) -> None:
        """Without srun nobody tells the agents that the head is lost, and they wait for its pings."""
        if self._name:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    ["scancel", "--signal=KILL", self._name],
                    stdin=subprocess.DEVNULL, capture_output=True, timeout=SCANCEL_LIMIT_S, check=False,
                )  # fmt: skip


class SrunStream:
    """A node's part of the step; see ``Stream``."""

    def __init__(self, step: SrunStep, node: int, name: str) -> None:
        self._step, self._node, self._name = step, node, name
        self._pieces: deque[bytes] = deque()
        self._lines: list[bytes] = []
        self._expected = 0
        self.is_over = self._is_closed = False
        self._why: OSError | None = None
        self._changed = threading.Condition()

    def take(self, sequence: int, state: bytes, coded: bytes) -> None:
        """A line that came for this node; waits while its reader has much to read, and all of srun with it."""
        if sequence != self._expected:
            self.end(OSError(f"srun lost a line: {self._expected} was to come, not {sequence}"))
            return
        self._expected += 1
        try:
            self._lines.append(binascii.a2b_base64(coded))
        except binascii.Error:
            self.end(OSError(f"srun cut line {sequence} in two"))
            return
        if state == LAST:
            self.end(None)
        elif state == WHOLE:
            with self._changed:
                self._changed.wait_for(lambda: len(self._pieces) < MAX_PIECES or self._is_closed)
                self._pieces.append(b"".join(self._lines))
                self._changed.notify_all()
            self._lines.clear()

    def end(self, why: OSError | None) -> bool:
        """Nothing more comes; the first reason counts. Returns whether there was one already."""
        with self._changed:
            was_over = self.is_over
            if not was_over:
                self.is_over, self._why = True, why
                self._changed.notify_all()
        return was_over

    def read(self, limit_s: float | None) -> bytes:
        """See ``Stream.read``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._pieces or self.is_over, limit_s):
                raise TimeoutError
            if self._pieces:
                self._changed.notify_all()
                return self._pieces.popleft()
            if self._why is not None:
                raise self._why
            return b""

    def write(self, data: bytes) -> None:
        """See ``Stream.write``."""
        self._step.send(self._node, data)

    def close(self) -> None:
        """See ``Stream.close``."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._step.close(self._node)

    def last_words(self) -> str:
        """See ``Stream.last_words``; srun speaks for all nodes."""
        return self._step.last_words()

    def why_refused(self) -> UnreachableError | None:
        """See ``Stream.why_refused``."""
        if not self._step.last_words():
            return None
        why = self._step.tell_words() or "the same srun"
        return UnreachableError(
            f"{self._name}: no agent by srun: {why}", "scontrol show node tells its state"
        )


class _Srun(ProcessStream):
    """The running ``srun``."""

    def end(self, within_s: float) -> None:
        """See it end; one that waits for a node which is gone is ended, in the background."""
        self.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LOST_LIMIT_S)
            return
        self._process.kill()
