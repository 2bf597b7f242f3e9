"""Between one task of a Slurm step and the agent: what all tasks share, cut apart. Runs on each node, before the agent.

srun hands its stdin to all tasks, and puts what they say into one stream. So the head's bytes come as packets
``node (4 bytes) kind (1 byte) length (4 bytes) payload``, of which each relay takes its own and those to all, and the
agent's bytes go back in lines of at most 1,000 bytes, ``<node> <sequence> <state> <base64>``: Slurm keeps those whole.
State 0: more of this piece follows; 1: the piece is whole; 2: that was all; 3: the name of the step, before all else.

Its source travels in srun's argument list: the standard library of Python 3.8 and nothing of ours.
"""

from __future__ import annotations

import binascii
import os
import select
import signal
import struct
import sys
import threading
from typing import Dict, List, NoReturn

ALL = 0xFFFFFFFF
HEAD = struct.Struct(">IcI")
#: kinds: which node has which number (text), bytes for the agent, the agent's code, end of file
NAMES, DATA, CODE, CLOSE = b"N", b"D", b"C", b"E"
LINE_BYTES = 1000
#: of the agent's bytes in one line: base64 makes 4 of 3, and 32 are left for numbers and blanks
PIECE_BYTES = (LINE_BYTES - 32) // 4 * 3
READ_BYTES = 64 * 1024
#: the bootstrap's words, see ``launcher/remote/bootstrap.py``
NEED, WORD = b"\nDCU-LAUNCH NEED\n", b"\nDCU-LAUNCH "


class Relay:
    """Both directions of one node, each with a thread: a head that is slow to listen must not keep its pings away.

    Args:
        agent: pid of the process whose stdin and stdout are at the other ends of the pipes.
    """

    def __init__(self, agent: int, to_agent: int, from_agent: int) -> None:
        self._agent, self._to_agent, self._from_agent = agent, to_agent, from_agent
        self._wake_reading, self._wake_writing = os.pipe()
        self._node = -1
        self._packets = bytearray()
        self._out = bytearray()
        self._code = b""
        self._needs_code = self._is_closing = False
        os.set_blocking(to_agent, False)

    def run(self) -> int:
        """Carry bytes until the agent has said its last; returns the code it ended with."""
        reading = [0, self._wake_reading]
        speaker = None
        while True:
            writing = [self._to_agent] if self._out and self._to_agent >= 0 else []
            ready, _, _ = select.select(reading, writing, [])
            # first: what the head says to an agent that needs its code comes behind that
            if self._wake_reading in ready:
                if os.read(self._wake_reading, 1) == b"e":
                    break
                self._needs_code = True
                self._give_code()
            if 0 in ready and not self._take(os.read(0, READ_BYTES)):
                reading.remove(0)
                self._is_closing = True
            self._feed_agent()
            if speaker is None and (self._node >= 0 or self._is_closing):
                speaker = threading.Thread(target=self._speak, daemon=True)
                speaker.start()
        _, status = os.waitpid(self._agent, 0)
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _take(self, data: bytes) -> bool:
        """The head's packets; False at their end."""
        self._packets += data
        while len(self._packets) >= HEAD.size:
            node, kind, length = HEAD.unpack_from(self._packets)
            end = HEAD.size + length
            if len(self._packets) < end:
                break
            if node in (ALL, self._node):
                self._obey(kind, bytes(self._packets[HEAD.size : end]))
            del self._packets[:end]
        return bool(data)

    def _obey(self, kind: bytes, payload: bytes) -> None:
        if kind == NAMES:
            self._node = find_number(payload.decode("ascii"), dict(os.environ))
        elif kind == DATA:
            self._out += payload
        elif kind == CODE:
            self._code = payload
            self._give_code()
        else:
            self._is_closing = True

    def _give_code(self) -> None:
        if self._needs_code and self._code:
            self._out += self._code
            self._needs_code, self._code = False, b""

    def _feed_agent(self) -> None:
        if self._to_agent < 0:
            return
        try:
            while self._out:
                del self._out[: os.write(self._to_agent, self._out[:READ_BYTES])]
        except BlockingIOError:
            return
        except OSError:  # it has ended
            self._out.clear()
        if self._is_closing:
            os.close(self._to_agent)
            self._to_agent = -1

    def _speak(self) -> None:
        """The agent's bytes as lines, from a thread of its own."""
        sequence = 0
        seen = b"\n"
        self._write(name_step(self._node, dict(os.environ)))
        data = b"-"
        while data:
            data = os.read(self._from_agent, READ_BYTES)
            if seen:
                seen += data
                if NEED in seen:
                    # told before the head hears of it; the code comes once for all, and may be here already
                    os.write(self._wake_writing, b"n")
                seen = b"" if b"\n" in seen.partition(WORD)[2] else seen
            for line in cut_lines(self._node, sequence, data):
                self._write(line)
                sequence += 1
        os.write(self._wake_writing, b"e")

    def _write(self, line: bytes) -> None:
        try:
            os.write(1, line)
        except OSError:
            pass  # nobody listens any more: the agent's lease ends it


def cut_lines(node: int, sequence: int, data: bytes) -> List[bytes]:
    """A piece of the agent's bytes as lines that Slurm keeps whole; no bytes: its last line."""
    lines: List[bytes] = []
    for start in range(0, len(data) or 1, PIECE_BYTES):
        state = 2 if not data else int(start + PIECE_BYTES >= len(data))
        coded = binascii.b2a_base64(data[start : start + PIECE_BYTES], newline=False)
        lines.append(b"%d %d %d %s\n" % (node, sequence + len(lines), state, coded))
    return lines


def name_step(node: int, environ: Dict[str, str]) -> bytes:
    """The line that names the step, so that the head can end it without srun."""
    step = "%s.%s" % (environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", ""))
    return b"%d 0 3 %s\n" % (node, binascii.b2a_base64(step.encode("ascii"), newline=False))


def find_number(names: str, environ: Dict[str, str]) -> int:
    """The number of this node in the head's list: by the name that Slurm gives it, else by its place in the step."""
    listed = names.split(",")
    name = environ.get("SLURMD_NODENAME", "")
    return listed.index(name) if name in listed else int(environ["SLURM_NODEID"])


def main(program: str) -> NoReturn:
    """Start the bootstrap behind two pipes and carry what goes through them.

    Args:
        program: the bootstrap's source.
    """
    child_reading, to_agent = os.pipe()
    from_agent, child_writing = os.pipe()
    agent = os.fork()
    if agent == 0:
        for descriptor, standard in ((child_reading, 0), (child_writing, 1)):
            os.dup2(descriptor, standard)
        for descriptor in (child_reading, child_writing, to_agent, from_agent):
            os.close(descriptor)
        exec(program, {"__name__": "__main__"})  # noqa: S102  ours, from the argument list
        os._exit(1)
    os.close(child_reading)
    os.close(child_writing)
    # what Slurm sends to every process of the step is for the agent: it ends its ranks first, and then this ends
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        code = Relay(agent, to_agent, from_agent).run()
    except OSError as error:
        sys.stderr.write("dcu-launch relay: %s\n" % error)
        code = 5
    os._exit(code)
