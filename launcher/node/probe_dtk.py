"""Driver, hyhal and DTK of a node: where they are and which version their own files tell. Runs in the agent.

The DTK is the one that the ranks' environment names, and no other: another installation on the same node says nothing
about what a rank will load.
"""

from __future__ import annotations

import os

from .paths import find_paths, list_names, read_text

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List, Mapping, Optional, Tuple

ROOT_NAMES = ("DTKROOT", "DTK_PATH", "DTK_HOME", "DTK_ROOT", "ROCM_PATH", "ROCM_HOME", "HIP_PATH")
VERSION_FILES = (".dtk_version", ".info/version", ".info/version-dev")
HYHAL_FOLDERS = ("/opt/hyhal", "/usr/local/hyhal")
MODULES = ("hycu", "hydcu")
DEVICE_NODES = ("/dev/kfd", "/dev/mkfd", "/dev/dri")
#: where DTKs stand on clusters, to name one in a cure
KNOWN_PLACES = (
    "/opt/dtk", "/opt/dtk-*", "/public/software/compiler/dtk-*", "/public/software/compiler/dtk/dtk-*",
    "/public/software/compiler/rocm/dtk-*",
)  # fmt: skip
#: the vendor's number, and the first digit of a card's id: its processors have the same vendor
_VENDOR, _CARD_IDS = "0x1d94", ("0x5", "0x6")


def find_driver(root: str = "") -> Dict[str, Any]:
    """The kernel's part and the driver's user part.

    Returns:
        ``module`` (hycu, hydcu, amdgpu, nvidia or None), ``version``, ``loaded``, ``nodes``, ``hyhal``,
        ``hyhal_libraries``, ``pci_cards``.
    """
    found: Dict[str, Any] = {"module": None, "version": None, "loaded": False}
    for module in (*MODULES, "amdgpu"):
        folder = "%s/sys/module/%s" % (root, module)
        if os.path.isdir(folder):
            state = read_text(folder + "/initstate")
            found.update(
                module=module, version=read_text(folder + "/version"), loaded=state in ("live", None)
            )
            break
    else:
        version = _nvidia_version(read_text(root + "/proc/driver/nvidia/version"))
        if version:
            found.update(module="nvidia", version=version, loaded=True)
    found["nodes"] = {node: _openable(root + node) for node in DEVICE_NODES}
    found["hyhal"] = next((folder for folder in HYHAL_FOLDERS if os.path.isdir(root + folder)), None)
    found["hyhal_libraries"] = bool(
        found["hyhal"] and any(os.path.isdir(root + found["hyhal"] + name) for name in ("/lib", "/lib64"))
    )
    found["pci_cards"] = _count_pci(root)
    return found


def _nvidia_version(text: Optional[str]) -> Optional[str]:
    """The first word of the driver's line that is two or three numbers with dots between."""
    for word in (text or "").split():
        parts = word.split(".")
        if len(parts) in (2, 3) and all(part.isdigit() for part in parts):
            return word
    return None


def _openable(path: str) -> str:
    """``missing``, ``denied`` or ``ok``; of a folder, the first thing in it that is one of a card's."""
    if os.path.isdir(path):
        inside = find_paths(path + "/renderD*")
        if not inside:
            return "missing"
        path = inside[0]
    if not os.path.exists(path):
        return "missing"
    return "ok" if os.access(path, os.R_OK | os.W_OK) else "denied"


def _count_pci(root: str) -> Optional[int]:
    """Cards on the PCI bus, driver or not; None where the bus cannot be seen."""
    vendors = find_paths(root + "/sys/bus/pci/devices/*/vendor")
    if not vendors:
        return None
    folders = [os.path.dirname(path) for path in vendors if read_text(path) == _VENDOR]
    return len([folder for folder in folders if (read_text(folder + "/device") or "").startswith(_CARD_IDS)])


def find_dtk(variables: Mapping[str, str], root: str = "") -> Dict[str, Any]:
    """``root`` of the DTK, ``named_by``, ``version`` (its own file's text), ``others`` that are installed, and more.

    ``variables`` in the answer: those that name a root (``reals``: where each leads), ``installed_at``: when, in seconds
    since the epoch.
    """
    named = {name: variables[name] for name in ROOT_NAMES if variables.get(name)}
    place, named_by = _root_of(named, variables)
    others = sorted(
        {path for pattern in KNOWN_PLACES for path in find_paths(root + pattern) if os.path.isdir(path)}
    )
    found: Dict[str, Any] = {"root": place, "named_by": named_by, "variables": named, "others": others}
    if place is None:
        return found
    # links are followed here: /opt/dtk and the folder that it names are one
    found["reals"] = {name: os.path.realpath(root + _plain(name, path)) for name, path in named.items()}
    found["exists"] = os.path.isdir(root + place)
    found["real"] = os.path.realpath(root + place)
    for name in VERSION_FILES:
        text = read_text("%s%s/%s" % (root, place, name))
        if text:
            path = "%s%s/%s" % (root, place, name)
            found.update(
                version=text.split("\n")[0].strip(), version_file=name, installed_at=os.stat(path).st_ctime
            )
            break
    found["env_script"] = os.path.isfile("%s%s/env.sh" % (root, place))
    return found


def _root_of(named: Mapping[str, str], variables: Mapping[str, str]) -> Tuple[Optional[str], Optional[str]]:
    for name in ROOT_NAMES:
        if name in named:
            return _plain(name, named[name]), name
    for program in ("hipcc", "rocminfo"):
        for folder in variables.get("PATH", "").split(":"):
            path = os.path.join(folder, program)
            if folder and os.access(path, os.X_OK) and not os.path.isdir(path):
                return os.path.dirname(os.path.dirname(os.path.realpath(path))), program
    return None, None


def _plain(name: str, path: str) -> str:
    """The root that a variable means: HIP_PATH may name a folder in it."""
    path = path.rstrip("/") or "/"
    return os.path.dirname(path) if name == "HIP_PATH" and os.path.basename(path) == "hip" else path


def find_holders(variables: Mapping[str, str], root: str = "") -> Dict[str, List[str]]:
    """Folders of LD_LIBRARY_PATH, in its order, that hold an RCCL or a HIP runtime."""
    kinds = {"rccl": ("librccl.so",), "hip": ("libgalaxyhip.so", "libamdhip64.so")}
    folders = [folder for folder in variables.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return {
        kind: [
            folder
            for folder in dict.fromkeys(folders)
            if any(name.startswith(starts) for name in list_names(root + folder))
        ]
        for kind, starts in kinds.items()
    }


def find_caches(variables: Mapping[str, str]) -> Dict[str, float]:
    """Caches of compiled kernels and when something was last put into each, in seconds since the epoch."""
    home = variables.get("HOME", "")
    places = [
        variables.get("MIOPEN_USER_DB_PATH"),
        os.path.join(home, ".config", "miopen"),
        os.path.join(home, ".cache", "miopen"),
        variables.get("TRITON_CACHE_DIR") or os.path.join(home, ".triton", "cache"),
    ]
    found = {}
    for place in places:
        if not place or not os.path.isdir(place):
            continue
        times = [os.stat(place).st_mtime]
        with os.scandir(place) as entries:
            for _, entry in zip(range(500), entries):
                times.append(entry.stat(follow_symlinks=False).st_mtime)
        if len(times) > 1:
            found[place] = max(times)
    return found
