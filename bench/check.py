"""What a check of many hosts costs, beside what opening their sessions costs. Needs root, like the tests' lab.

    python -m bench.check --hosts 64

Two arms, in turn: ``open`` opens a session to each host, starts its agent and ends it; ``check`` is ``dcu-launch check``
without torch. Both are whole commands, from the start of Python on. Also shown: the slowest node's probe.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tests.lab.lab import BIN, Lab

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0
#: what the ``open`` arm runs on the first host
_OPEN = """
import sys
from launcher.hosts.hostfile import read_hostfile
from launcher.launch.nodes import Nodes
from launcher.remote.fanout import open_sessions
from launcher.remote.options import RemoteOptions
from launcher.remote.session import Inbox
inbox, hosts = Inbox(), read_hostfile(sys.argv[1])
greetings = [("%032x" % node, {"kind": "ping"}) for node in range(len(hosts))]
sessions = open_sessions(hosts, RemoteOptions(), inbox, greetings, lambda waiting: None)
assert Nodes(sessions, inbox, 10.0, lambda: None).end() == []
"""


class Arms:
    """The two commands over one lab."""

    def __init__(self, lab: Lab, hosts: int) -> None:
        self.lab = lab
        self.names = lab.up(hosts)
        self.hostfile = lab.shared / "hosts"
        self.hostfile.write_text("".join(f"{name} slots=8\n" for name in self.names))
        check = [
            str(BIN / "dcu-launch"),
            "check",
            "--no-torch-check",
            "--json",
            "--hosts",
            str(self.hostfile),
        ]
        self.argv = {"open": [sys.executable, "-c", _OPEN, str(self.hostfile)], "check": check}

    def measure(self, arm: str) -> tuple[float, Any]:
        """Seconds of the whole command, and what it printed."""
        begun = time.monotonic()
        done = self.lab.run(1, self.argv[arm], cwd=ROOT, timeout=LIMIT_S)
        ended = time.monotonic()
        if done.returncode != 0:
            raise SystemExit(f"{arm}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr}")
        return ended - begun, json.loads(done.stdout) if arm == "check" else None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hosts", type=int, default=64)
    asked = parser.parse_args()
    lab = Lab(ROOT / ".lab" / "bench")
    times: dict[str, list[float]] = {"open": [], "check": []}
    probes: list[float] = []
    try:
        arms = Arms(lab, asked.hosts)
        for number in range(asked.rounds + 1):
            for name in times:
                seconds, told = arms.measure(name)
                if number:  # the first round brings the code to the hosts and fills caches
                    times[name].append(seconds)
                    probes += [held for held in told["probe_s"].values() if held is not None] if told else []
    finally:
        lab.down()
    medians = {name: round(statistics.median(values), 2) for name, values in times.items()}
    probe = {"median": statistics.median(probes), "slowest": max(probes)}
    print(json.dumps({"hosts": asked.hosts, "whole_s": medians, "probe_s": probe}))
    print(f"check / open: {medians['check'] / medians['open']:.2f}")


if __name__ == "__main__":
    main()
