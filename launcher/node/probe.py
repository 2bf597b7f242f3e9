"""What the agent can say of its node without torch, in well under a second. Runs in a thread of the agent.

Every field may be missing: unknown is never a reason to fail here, and never counts as equal on the head.
"""

from __future__ import annotations

import glob
import os
import platform
import re
import socket
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from . import network, numa

PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "deepspeed",
    "safetensors",
    "numpy",
    "triton",
)
PYTHON_LIMIT_S = 20.0
VISIBILITY = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

#: asked of an interpreter that is not the agent's own
_ASK_PYTHON = "import sys,site;print(sys.version.split()[0]);print(*sys.path,sep=chr(10))"


def look(message: Dict[str, Any], variables: Dict[str, str]) -> Dict[str, Any]:
    """The node's report.

    Args:
        message: the head's ``prepare``: ``pythons`` (candidates), ``workdir``, ``must_exist``, ``run_dir``, ``run_dir_token``.
        variables: the environment that ranks will get.
    """
    report: Dict[str, Any] = {"hostname": socket.gethostname(), "agent_python": platform.python_version()}
    fields: Dict[str, Callable[[], Any]] = {
        "python": lambda: find_python(message, variables),
        "cards": lambda: find_cards(variables),
        "interfaces": network.interfaces,
        "session_address": network.session_address,
        "cpus": lambda: len(os.sched_getaffinity(0)),
        "workdir": lambda: os.path.isdir(message["workdir"]),
        "missing": lambda: [
            path
            for path in message.get("must_exist", ())
            if not os.path.exists(os.path.join(message["workdir"], path))
        ],
        "sees_run_dir": lambda: sees_token(message.get("run_dir", ""), message.get("run_dir_token", "")),
        "visibility": lambda: {name: variables[name] for name in VISIBILITY if name in variables},
    }
    if message.get("bind"):
        fields["topology"] = numa.read_topology
    for name, ask in fields.items():
        try:
            report[name] = ask()
        except Exception as error:
            report.setdefault("unknown", {})[name] = "%s: %s" % (type(error).__name__, error)
    return report


def find_python(message: Dict[str, Any], variables: Dict[str, str]) -> Dict[str, Any]:
    """The interpreter of the ranks: ``path``, ``version``, ``packages``; or ``error`` when a named one is missing."""
    path, error = _choose_python(message, variables)
    if path is None:
        return {"error": error}
    if os.path.realpath(path) == os.path.realpath(sys.executable) and os.path.dirname(
        path
    ) == os.path.dirname(sys.executable):
        version, folders = platform.python_version(), list(sys.path)
    else:
        done = subprocess.run(
            [path, "-c", _ASK_PYTHON],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=PYTHON_LIMIT_S,
        )
        lines = done.stdout.decode("utf-8", "replace").split("\n")
        if done.returncode != 0 or not re.match(r"\d+\.\d+", lines[0]):
            return {
                "error": "%s does not run: %s" % (path, done.stderr.decode("utf-8", "replace").strip()[-300:])
            }
        version, folders = lines[0], lines[1:]
    return {"path": path, "version": version, "packages": read_packages(folders)}


def _choose_python(message: Dict[str, Any], variables: Dict[str, str]) -> Tuple[Optional[str], str]:
    """A named interpreter; else the set-up's virtual environment; else the head's path; else ``python3`` on PATH."""
    named = message.get("python")
    if named:
        found = _on_path(os.path.expanduser(named), variables)
        return found, "%s is missing" % named
    for root in (variables.get("VIRTUAL_ENV"), variables.get("CONDA_PREFIX")):
        if (
            root
            and root in variables.get("PATH", "")
            and os.access(os.path.join(root, "bin", "python"), os.X_OK)
        ):
            return os.path.join(root, "bin", "python"), ""
    like_head = message.get("like_head")
    if like_head and os.access(like_head, os.X_OK):
        return like_head, ""
    return _on_path("python3", variables), "python3 is not on PATH"


def _on_path(program: str, variables: Dict[str, str]) -> Optional[str]:
    if "/" in program:
        return program if os.access(program, os.X_OK) and not os.path.isdir(program) else None
    for folder in variables.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def read_packages(folders: List[str]) -> Dict[str, str]:
    """Versions of ``PACKAGES`` by the names of dist-info folders: no import, no metadata parsed; first folder wins."""
    found: Dict[str, str] = {}
    wanted = {name.replace("-", "_"): name for name in PACKAGES}
    for folder in folders:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            if entry.endswith((".dist-info", ".egg-info")):
                name, _, version = entry.rsplit(".", 1)[0].partition("-")
                key = wanted.get(name.lower().replace("-", "_"))
                if key and version and key not in found:
                    found[key] = version
    return found


def find_cards(variables: Dict[str, str]) -> Dict[str, Any]:
    """``kind`` (dcu, rocm, cuda, cpu), ``count`` of cards, ``visible``: numbers that the environment leaves visible."""
    kind, count = "cpu", 0
    amd = _count_kfd()
    nvidia = len(glob.glob("/proc/driver/nvidia/gpus/*")) or len(
        [path for path in glob.glob("/dev/nvidia*") if re.search(r"nvidia\d+$", path)]
    )
    if amd:
        kind, count = ("dcu" if _is_hygon(variables) else "rocm"), amd
    elif nvidia:
        kind, count = "cuda", nvidia
    visible: Optional[List[str]] = None
    for name in VISIBILITY:
        if name in variables:
            listed = [item.strip() for item in variables[name].split(",") if item.strip()]
            visible = listed if visible is None or len(listed) < len(visible) else visible
    return {"kind": kind, "count": count, "visible": visible}


def _count_kfd() -> int:
    """GPU nodes of the KFD topology: those with SIMD units; 0 without /dev/kfd and /dev/mkfd."""
    if not (os.path.exists("/dev/kfd") or os.path.exists("/dev/mkfd")):
        return 0
    count = 0
    for path in glob.glob("/sys/class/kfd/kfd/topology/nodes/*/properties"):
        with open(path) as file:
            match = re.search(r"^simd_count (\d+)", file.read(), re.M)
        count += bool(match and int(match.group(1)))
    return count


def _is_hygon(variables: Dict[str, str]) -> bool:
    """A DTK, hyhal, or the hycu/hydcu driver tells a DCU from an AMD card."""
    marks = ["/opt/hyhal", "/usr/local/hyhal", "/sys/module/hycu", "/sys/module/hydcu", "/opt/dtk"]
    return "DTKROOT" in variables or any(os.path.exists(mark) for mark in marks)


def sees_token(run_dir: str, token: str) -> Optional[bool]:
    """True when this node sees the head's run folder: the file that the head just wrote is there with its text."""
    if not run_dir or not token:
        return None
    try:
        with open(os.path.join(run_dir, ".seen-by-nodes")) as file:
            return file.read().strip() == token
    except OSError:
        return False
