"""Which RCCL, NCCL, HIP runtime and UCX a rank would load, and the version each tells of itself. Runs in the agent.

The dynamic loader is asked, not guessed: a short-lived process with the ranks' interpreter and environment opens the
library, reads from its own /proc/self/maps which file that was, and calls its version function. One process a library,
since a runtime of another DTK may crash.
"""

from __future__ import annotations

import os
import sys

from . import plain_json
from .ask import ask_all
from .paths import find_paths

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List, Mapping, Optional

    from .ask import Answer

LIMIT_S = 15.0
DTK_LIBRARY_FOLDERS = ("lib", "lib64", "hip/lib", "rccl/lib")

_PROGRAM = r"""
import ctypes, json, sys
function, names = sys.argv[1], sys.argv[2:]
errors = []
for name in names:
    try:
        library = ctypes.CDLL(name)
        break
    except OSError as error:
        errors.append(str(error))
else:
    print(json.dumps({"error": errors[0] if errors else "no name"}))
    sys.exit(0)
stem = name.rsplit("/", 1)[-1].split(".so")[0]
with open("/proc/self/maps") as file:
    paths = [line.split(None, 5)[5].strip() for line in file if stem in line and line.count("/")]
print(json.dumps({"path": paths[0] if paths else name}), flush=True)
if function.endswith("_string"):
    ask = getattr(library, function)
    ask.restype = ctypes.c_char_p
    print(json.dumps({"text": ask().decode("ascii", "replace")}))
    sys.exit(0)
number = ctypes.c_int(0)
code = getattr(library, function)(ctypes.byref(number))
print(json.dumps({"code": number.value} if code == 0 else {"error": "%s returned %d" % (function, code)}))
"""
#: kind -> function, names to open in order
LIBRARIES = {
    "rccl": ("ncclGetVersion", ("librccl.so.1", "librccl.so")),
    "nccl": ("ncclGetVersion", ("libnccl.so.2", "libnccl.so")),
    "ucx": ("ucp_get_version_string", ("libucp.so.0", "libucp.so")),
    "hip": (
        "hipRuntimeGetVersion",
        ("libgalaxyhip.so.5", "libgalaxyhip.so", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"),
    ),
}


def ask_libraries(
    python: Optional[str],
    folders: List[str],
    variables: Mapping[str, str],
    dtk_root: Optional[str],
    cards: str,
) -> Dict[str, Dict[str, Any]]:
    """For each kind of library that this node should or may have: ``path``, and ``code`` or ``text`` or ``error``.

    Args:
        folders: where the ranks' Python looks for modules; NCCL comes as one.
        cards: kind of cards: a DCU node must have RCCL and HIP, so they are asked for even where none is seen.
    """
    commands = {}
    for kind, (function, names) in LIBRARIES.items():
        expected = kind in ("rccl", "hip") and (dtk_root is not None or cards in ("dcu", "rocm"))
        expected = expected or (kind == "ucx" and variables.get("NCCL_PLUGIN_P2P") == "ucx")
        held = _search(names, [*variables.get("LD_LIBRARY_PATH", "").split(":"), *_dtk_folders(dtk_root)])
        bundled = _bundled_nccl(folders) if kind == "nccl" and not held else None
        if not (expected or held or bundled):
            continue
        wanted = [bundled] if bundled else list(names)
        commands[kind] = [python or sys.executable, "-I", "-S", "-c", _PROGRAM, function, *wanted]
    return {kind: _read(answer) for kind, answer in ask_all(commands, variables, LIMIT_S).items()}


def _dtk_folders(dtk_root: Optional[str]) -> List[str]:
    return [os.path.join(dtk_root, folder) for folder in DTK_LIBRARY_FOLDERS] if dtk_root else []


def _search(names: Any, folders: List[str]) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for folder in folders if folder for name in names)


def _bundled_nccl(folders: List[str]) -> Optional[str]:
    for folder in folders:
        found = find_paths(os.path.join(folder or os.getcwd(), "nvidia", "nccl", "lib", "libnccl.so.*"))
        if found:
            return found[0]
    return None


def _read(answer: Answer) -> Dict[str, Any]:
    """The JSON lines of one process; what it said before a crash counts."""
    found: Dict[str, Any] = {}
    for line in answer.text.split("\n"):
        try:
            value = plain_json.loads(line.strip())
        except ValueError:
            continue
        if isinstance(value, dict):
            found.update(value)
    if answer.error and "code" not in found:
        found.setdefault("error", answer.error)
    return found
