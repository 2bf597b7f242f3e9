"""What the agent can say of its node without torch, in well under a second. Runs in a thread of the agent.

Every field may be missing: unknown is never a reason to fail here, and never counts as equal on the head. Whatever starts
other programs runs side by side; the rest reads small files.
"""

from __future__ import annotations

import _thread
import os
import sys
import time

from . import (
    interfaces,
    probe_cards,
    probe_dtk,
    probe_libraries,
    probe_network,
    probe_python,
    probe_system,
)

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable, Dict, Optional

    Fields = Dict[str, Callable[[], Any]]

VISIBILITY = probe_cards.VISIBILITY


def look(message: Dict[str, Any], variables: Dict[str, str]) -> Dict[str, Any]:
    """The node's report.

    Args:
        message: the head's ``prepare``: ``python``, ``like_head``, ``workdir``, ``must_exist``, ``run_dir``,
            ``run_dir_token``, ``bind``.
        variables: the environment that ranks will get.
    """
    begun = time.monotonic()
    report: Dict[str, Any] = {"hostname": os.uname().nodename}
    report["agent_python"] = "%d.%d.%d" % sys.version_info[:3]
    workdir, must_exist = message["workdir"], list(message.get("must_exist", ()))
    _fill(report, {"dtk": lambda: probe_dtk.find_dtk(variables)})
    dtk_root = (report.get("dtk") or {}).get("root")
    slow = [
        _in_thread(report, {"cards": lambda: probe_cards.find_cards(variables, dtk_root)}),
        _in_thread(report, {"python": lambda: probe_python.find_python(message, variables)}),
    ]
    _fill(
        report,
        {
            "interfaces": interfaces.interfaces,
            "session_address": interfaces.session_address,
            "cpus": lambda: len(os.sched_getaffinity(0)),
            "workdir": lambda: os.path.isdir(workdir),
            "missing": lambda: [p for p in must_exist if not os.path.exists(os.path.join(workdir, p))],
            "digests": lambda: probe_system.digest_paths(must_exist, workdir),
            "sees_run_dir": lambda: sees_token(message.get("run_dir", ""), message.get("run_dir_token", "")),
            "visibility": lambda: {name: variables[name] for name in VISIBILITY if name in variables},
            "variables": lambda: probe_system.select_variables(variables),
            "system": lambda: probe_system.describe_system(message, variables),
            "driver": probe_dtk.find_driver,
            "holders": lambda: probe_dtk.find_holders(variables),
            "caches": lambda: probe_dtk.find_caches(variables),
            "hcas": probe_network.find_hcas,
            "links": probe_network.describe_links,
        },
    )
    if message.get("bind") == "numa":
        from . import numa

        _fill(report, {"topology": numa.read_topology})
    for done in slow:
        done.acquire()
    _fill(report, {"libraries": lambda: _ask_libraries(report, variables, dtk_root)})
    report["probe_s"] = round(time.monotonic() - begun, 4)
    return report


def _ask_libraries(
    report: Dict[str, Any], variables: Dict[str, str], dtk_root: Optional[str]
) -> Dict[str, Any]:
    python = report.get("python") or {}
    kind = (report.get("cards") or {}).get("kind", "cpu")
    # where modules are found matters here alone, and would make every report long
    folders = python.pop("folders", [])
    return probe_libraries.ask_libraries(python.get("path"), folders, variables, dtk_root, kind)


def _fill(report: Dict[str, Any], fields: Fields) -> None:
    """Ask for each field; one that fails is unknown, with the reason."""
    for name, ask in fields.items():
        try:
            report[name] = ask()
        except Exception as error:  # whatever a node's files hold, the rest of the report must come
            report.setdefault("unknown", {})[name] = "%s: %s" % (type(error).__name__, error)


def _in_thread(report: Dict[str, Any], fields: Fields) -> _thread.LockType:
    """Ask beside this thread; the lock is free when the fields are there."""
    done = _thread.allocate_lock()
    done.acquire()

    def fill() -> None:
        try:
            _fill(report, fields)
        finally:
            done.release()

    _thread.start_new_thread(fill, ())
    return done


def sees_token(run_dir: str, token: str) -> Optional[bool]:
    """True when this node sees the head's run folder: the file that the head just wrote is there with its text."""
    if not run_dir or not token:
        return None
    try:
        with open(os.path.join(run_dir, ".seen-by-nodes")) as file:
            return file.read().strip() == token
    except OSError:
        return False
