"""Reach the hosts of a hostfile as a run does, and print what each answered.

    python -m tests.remote.reach HOSTFILE [options]

Stands on the real seam (``open_sessions``) without the rest of a run, so that lab tests of SSH stay short. Ends with the
exit code of dcu-launch; the last line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading
import time
from typing import Any

from launcher.base.errors import LauncherError
from launcher.hosts.hostfile import read_hostfile
from launcher.launch.nodes import Nodes
from launcher.remote.fanout import open_sessions
from launcher.remote.options import RemoteOptions
from launcher.remote.session import Inbox

PREPARE = {
    "kind": "prepare", "lost_after": 10.0, "python": None, "like_head": sys.executable, "sent": [], "named": [], "setup": [],
    "start": "spawn", "modules": [], "import_defaults": {}, "slots": 1, "workdir": "/", "must_exist": [], "run_dir": "",
    "run_dir_token": "",
}  # fmt: skip


def reach(hostfile: str, options: RemoteOptions) -> dict[str, Any]:
    """Bring agents up on all hosts, end them, and tell what they said."""
    hosts = read_hostfile(hostfile)
    inbox = Inbox()
    greetings = [(secrets.token_hex(16), {**PREPARE, "python": host.python}) for host in hosts]
    sessions = open_sessions(hosts, options, inbox, greetings, tick=lambda waiting: None)
    nodes = Nodes(sessions, inbox, 10.0, tick=lambda: None)
    try:
        answers = nodes.collect("report", list(range(len(hosts))), 30.0)
        threads = threading.active_count()
    finally:
        unconfirmed = nodes.end()
    reports = {host.name: answers[node]["report"] for node, host in enumerate(hosts)}
    return {"reports": reports, "threads": threads, "unconfirmed": unconfirmed}


def main() -> int:
    """Read options, reach, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("hostfile")
    parser.add_argument("--transport", default="ssh")
    parser.add_argument("--accept-new-host-keys", action="store_true")
    parser.add_argument("--connect-timeout", type=float, default=10.0)
    parser.add_argument("--retry-for", type=float, default=30.0)
    parser.add_argument("--fanout", type=int, default=64)
    asked = vars(parser.parse_args())
    hostfile = asked.pop("hostfile")
    begun = time.monotonic()
    try:
        said: dict[str, Any] = {"exit": 0, **reach(hostfile, RemoteOptions(**asked))}
    except LauncherError as error:
        said = {"exit": error.exit_code, "message": error.message, "hint": error.hint}
    sys.stdout.write(json.dumps({**said, "seconds": time.monotonic() - begun}) + "\n")
    return int(said["exit"])


if __name__ == "__main__":
    sys.exit(main())
