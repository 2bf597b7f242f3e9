"""Kernel, memory, limits and disks of a node, and which of the files that a run needs it has. Runs in the agent."""

from __future__ import annotations

import os
import resource

from .paths import read_field, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List, Mapping, Optional

#: above it only the size of a file is compared
HASHED_BYTES = 8 * 1024 * 1024
#: of a folder that changes while it is read, or holds a data set
MAX_ENTRIES = 5000
#: of a folder with at most so many files each is told, so that the head can say which of them differ
TOLD_ENTRIES = 64
#: variables that must be the same on all nodes, or tell why something fails
SHOWN_PREFIXES = (
    "NCCL_",
    "RCCL_",
    "HSA_",
    "HIP_",
    "GLOO_",
    "MIOPEN_",
    "UCX_",
    "SHCA_",
    "ROCBLAS_",
    "ROCR_",
    "HYHAL_",
)
SHOWN_NAMES = frozenset(
    {
        "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHOME", "CUDA_VISIBLE_DEVICES", "GPU_MAX_HW_QUEUES",
        "OMP_NUM_THREADS", "DTKROOT", "ROCM_PATH", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    }
)  # fmt: skip


def describe_system(
    message: Mapping[str, Any], variables: Mapping[str, str], root: str = ""
) -> Dict[str, Any]:
    """Kernel, OS, glibc, CPU, limits and free disk; numbers in bytes, None where unlimited."""
    release = read_field(read_text(root + "/etc/os-release"), "PRETTY_NAME")
    memory = (read_field(read_text(root + "/proc/meminfo", 4096), "MemTotal") or "").partition(" kB")[0]
    arguments = read_text(root + "/proc/cmdline") or ""
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    cache = variables.get("XDG_CACHE_HOME") or os.path.join(variables.get("HOME", "/"), ".cache")
    return {
        "kernel": os.uname().release,
        "os": release.strip('"') if release else None,
        "glibc": _glibc(),
        "cpu": read_field(read_text(root + "/proc/cpuinfo", 4096), "model name"),
        "memory": int(memory) * 1024 if memory.isdigit() else None,
        "memlock": None if limit == resource.RLIM_INFINITY else limit,
        "memlock_known": True,
        "shm": _size_of("/dev/shm"),  # noqa: S108  asked for its size alone
        "free_run_dir": _free_at(message.get("run_dir") or message.get("workdir") or "/"),
        "cache_dir": cache,
        "free_cache": _free_at(cache),
        "iommu_passthrough": "iommu=pt" in arguments or "iommu.passthrough=1" in arguments,
        "numa_balancing": read_text(root + "/proc/sys/kernel/numa_balancing"),
        "container": is_container(root),
        "groups": sorted(set(os.getgroups()) | {os.getegid()}),
        "user": os.geteuid(),
    }


def _glibc() -> Optional[str]:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").replace("glibc ", "") or None
    except (OSError, ValueError):
        return None


def is_container(root: str = "") -> bool:
    """Whether the agent runs in a container: then things are mounted rather than installed."""
    if os.path.exists(root + "/.dockerenv") or os.path.exists(root + "/run/.containerenv"):
        return True
    groups = read_text(root + "/proc/1/cgroup") or ""
    return any(word in groups for word in ("docker", "kubepods", "containerd"))


def _size_of(path: str) -> Optional[int]:
    try:
        about = os.statvfs(path)
    except OSError:
        return None
    return about.f_frsize * about.f_blocks


def _free_at(path: str) -> Optional[int]:
    """Free bytes for this user at a path that may not be there yet."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    try:
        about = os.statvfs(path or "/")
    except OSError:
        return None
    return about.f_frsize * about.f_bavail


def select_variables(variables: Mapping[str, str]) -> Dict[str, str]:
    """Those of the ranks' variables that decide how they talk to cards and to each other."""
    return {
        name: value
        for name, value in sorted(variables.items())
        if name in SHOWN_NAMES or name.startswith(SHOWN_PREFIXES)
    }


def digest_paths(paths: List[str], workdir: str) -> Dict[str, str]:
    """Of each path that is there a text that is equal on two nodes when its content is (large files: its size)."""
    found = {}
    for path in paths:
        whole = os.path.join(workdir, path)
        try:
            found[path] = _digest_folder(whole) if os.path.isdir(whole) else _digest_file(whole)
        except OSError:
            continue
    return found


def _sha256(data: bytes) -> str:
    """By the interpreter's own function where it has one: hashlib loads all of OpenSSL."""
    for name in ("_sha256", "_sha2", "hashlib"):  # until 3.11, from 3.12 on, without either
        try:
            return str(__import__(name).sha256(data).hexdigest())
        except (ImportError, AttributeError):
            continue
    return ""


def _digest_file(path: str) -> str:
    size = os.path.getsize(path)
    if size > HASHED_BYTES:
        return "%d bytes" % size
    with open(path, "rb") as file:
        return "sha256 " + _sha256(file.read())


def _digest_folder(path: str) -> str:
    """Names and sizes of the files of a folder, two levels deep; config.json's content too."""
    lines = []
    for folder, folders, files in os.walk(path):
        depth = os.path.relpath(folder, path).count(os.sep)
        folders[:] = [] if depth >= 1 else sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            whole = os.path.join(folder, name)
            content = _digest_file(whole) if name == "config.json" else "%d bytes" % os.path.getsize(whole)
            lines.append("%s | %s" % (os.path.relpath(whole, path).replace("\n", "\\n"), content))
        if len(lines) > MAX_ENTRIES:
            break
    text = "\n".join(sorted(lines))
    if 0 < len(lines) <= TOLD_ENTRIES:
        return text
    return "%d files %s" % (len(lines), _sha256(text.encode("utf-8", "surrogateescape")))
