"""Cards of a node: how many, which, who uses them, which are visible. Runs in the agent.

The kernel's own tables come first, since they cost nothing; hy-smi, rocminfo and nvidia-smi are asked where they are
found, side by side. ``root`` stands before all paths of the system in tests.
"""

from __future__ import annotations

import os

from .ask import ask_all, find_program
from .paths import find_paths, read_int, read_text
from .probe_dtk import HYHAL_FOLDERS

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List, Mapping, Optional, Tuple

    from . import smi
    from .ask import Answer

SMI_LIMIT_S = 10.0
VISIBILITY = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def find_cards(
    variables: Mapping[str, str], dtk_root: Optional[str] = None, root: str = ""
) -> Dict[str, Any]:
    """All that is known of cards.

    Returns:
        ``kind`` (dcu, rocm, cuda, cpu), ``count``, ``visible`` (numbers that the environment leaves visible, or None),
        ``list`` (facts of each card), ``counts`` by source, ``processes``, ``driver`` (as hy-smi says), ``asked``.
    """
    kernel = read_topology(root)
    nvidia = count_nvidia(root)
    answers = ask_tools(variables, dtk_root, bool(kernel) or has_kfd(root), nvidia > 0, root)
    if not (kernel or nvidia or answers):
        return {
            "kind": "cpu", "count": 0, "visible": visible_cards(variables), "list": [], "counts": {}, "processes": None,
            "driver": None, "asked": {},
        }  # fmt: skip
    from . import smi  # what only nodes with cards need

    texts = {name: answer.text for name, answer in answers.items()}
    told = smi.merge_cards(
        smi.read_cards(texts.get("facts", "")),
        smi.read_cards(texts.get("table", "")),
        smi.read_cards(texts.get("topology", "")),
        smi.read_nvidia(texts.get("nvidia", "")),
    )
    info = smi.read_rocminfo(texts.get("rocminfo", ""))
    counts = {"kernel": len(kernel), "smi": len(told), "rocminfo": len(info)}
    counts = {name: count for name, count in counts.items() if count}
    count = len(kernel) or nvidia or len(told) or len(info)
    kind = "cpu"
    if nvidia and not kernel:
        kind = "cuda"
    elif count:
        kind = "dcu" if _is_hygon(variables, texts, root) else "rocm"
    return {
        "kind": kind,
        "count": count,
        "visible": visible_cards(variables),
        "list": _add_numa(smi.merge_cards(told, kernel, info), root),
        "counts": counts,
        "processes": _name_processes(smi.read_processes(texts.get("processes", "")), root),
        "driver": smi.read_driver_version(texts.get("driver", ""))
        or (told[0].get("driver") if told else None),
        "asked": {name: answer.error for name, answer in answers.items()},
    }


def has_kfd(root: str = "") -> bool:
    """Whether the driver of DCUs, or of AMD's cards, has made its device."""
    return os.path.exists(root + "/dev/kfd") or os.path.exists(root + "/dev/mkfd")


def find_smi(
    variables: Mapping[str, str], dtk_root: Optional[str], has_cards: bool, root: str = ""
) -> Tuple[Optional[str], Dict[str, str]]:
    """hy-smi, else rocm-smi where there are cards, and the variables to start it with."""
    folders = [root + folder + "/bin" for folder in HYHAL_FOLDERS]
    program = find_program("hy-smi", variables, folders)
    if program is None and has_cards:
        program = find_program("rocm-smi", variables, [os.path.join(dtk_root, "bin")] if dtk_root else [])
    environment = dict(variables)
    if program and program.startswith(tuple(folders)):
        # its own libraries lie beside hy-smi, and a shell that is not a login shell has no path to them
        lib = os.path.join(os.path.dirname(os.path.dirname(program)), "lib")
        before = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = lib + ":" + before if before else lib
    return program, environment


def ask_tools(
    variables: Mapping[str, str], dtk_root: Optional[str], has_cards: bool, has_nvidia: bool, root: str = ""
) -> Dict[str, Answer]:
    """Ask hy-smi (or rocm-smi), rocminfo and nvidia-smi at once, each only where it is."""
    dtk_folder = [os.path.join(dtk_root, "bin")] if dtk_root else []
    program, environment = find_smi(variables, dtk_root, has_cards, root)
    commands: Dict[str, List[str]] = {}
    if program:
        commands = {
            "table": [program],
            "facts": [
                program,
                "--showproductname",
                "--showmeminfo",
                "vram",
                "--showbus",
                "--showvbios",
                "--json",
            ],
            "driver": [program, "--showdriverversion"],
            "processes": [program, "--showpids"],
            "topology": [program, "--showtopo"],
        }
    rocminfo = find_program("rocminfo", variables, dtk_folder) if program or has_cards else None
    if rocminfo:
        commands["rocminfo"] = [rocminfo]
    nvidia = find_program("nvidia-smi", variables, []) if has_nvidia else None
    if nvidia:
        from .smi import NVIDIA_FIELDS

        commands["nvidia"] = [nvidia, "--query-gpu=" + NVIDIA_FIELDS, "--format=csv,noheader,nounits"]
    return ask_all(commands, environment, SMI_LIMIT_S) if commands else {}


def read_topology(root: str = "") -> List[smi.Card]:
    """Cards of the KFD topology, nodes with SIMD units, with gfx, memory and place on the PCI bus; [] without a device."""
    if not has_kfd(root):
        return []
    found: List[smi.Card] = []
    paths = find_paths(root + "/sys/class/kfd/kfd/topology/nodes/*/properties")
    for path in sorted(paths, key=lambda path: int(path.split("/")[-2])):
        values = _read_properties(path)
        if not values.get("simd_count"):
            continue
        card: smi.Card = {"index": len(found)}
        target = values.get("gfx_target_version", 0)
        if target:
            card["gfx"] = "gfx%d%x%x" % (target // 10000, target // 100 % 100, target % 100)
        if "location_id" in values:
            place = values["location_id"]
            parts = (values.get("domain", 0), place >> 8, place >> 3 & 31, place & 7)
            card["pci"] = "%04x:%02x:%02x.%x" % parts
        banks = find_paths(os.path.dirname(path) + "/mem_banks/*/properties")
        sizes = [_read_properties(bank).get("size_in_bytes") for bank in banks]
        known = [size for size in sizes if size is not None]
        if known:
            card["memory_mib"] = max(known) >> 20
        found.append(card)
    return found


def _read_properties(path: str) -> Dict[str, int]:
    """``name number`` lines; others are left out."""
    pairs = [line.split(" ") for line in (read_text(path) or "").split("\n")]
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}


def count_nvidia(root: str = "") -> int:
    """NVIDIA cards by the driver's own folder, else by device files."""
    return len(find_paths(root + "/proc/driver/nvidia/gpus/*")) or len(
        [path for path in find_paths(root + "/dev/nvidia*") if path.rpartition("nvidia")[2].isdigit()]
    )


def _is_hygon(variables: Mapping[str, str], texts: Mapping[str, str], root: str) -> bool:
    """A DTK, hyhal, the driver, or the tools' own words tell a DCU from an AMD card."""
    marks = ["/opt/hyhal", "/usr/local/hyhal", "/sys/module/hycu", "/sys/module/hydcu", "/opt/dtk"]
    import re

    words = re.search(r"\b(?:HCU|DCU)\b", texts.get("table", "") + texts.get("rocminfo", ""))
    return bool(words) or "DTKROOT" in variables or any(os.path.exists(root + mark) for mark in marks)


def visible_cards(variables: Mapping[str, str]) -> Optional[List[str]]:
    """Numbers that stay visible; None: all. HIP and CUDA choose among what ROCR leaves, so the shortest list counts."""
    visible: Optional[List[str]] = None
    for name in VISIBILITY:
        if name in variables:
            listed = [item.strip() for item in variables[name].split(",") if item.strip()]
            visible = listed if visible is None or len(listed) < len(visible) else visible
    return visible


def _add_numa(cards: List[smi.Card], root: str) -> List[smi.Card]:
    for card in cards:
        if "numa" not in card and "pci" in card:
            pci = card["pci"] if card["pci"].count(":") == 2 else "0000:" + card["pci"]
            number = read_int(read_text("%s/sys/bus/pci/devices/%s/numa_node" % (root, pci)))
            if number is not None:
                card["numa"] = number
    return cards


def _name_processes(processes: Optional[List[Dict[str, Any]]], root: str) -> Optional[List[Dict[str, Any]]]:
    """Add to each process its user and command, where this node can see it."""
    for process in processes or ():
        user, command = _who(process["pid"], root)
        if command:
            process.update(user=user, command=command)
    return processes


def _who(pid: int, root: str) -> Tuple[str, str]:
    try:
        uid = os.stat("%s/proc/%d" % (root, pid)).st_uid
        with open("%s/proc/%d/cmdline" % (root, pid), "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return "", ""
    import pwd

    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    return user, b" ".join(words).decode("utf-8", "replace").strip()[:120]
