"""Where an ordinary start of this interpreter would look for installed packages. Runs in the agent.

The agent itself is started without ``site``: the .pth files of a large environment cost more than its whole start.
"""

from __future__ import annotations

import os
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Dict, List, Mapping, Tuple


def find_module_folders(variables: Mapping[str, str]) -> List[str]:
    """PYTHONPATH, site-packages and what .pth files add as plain folders, in the order of ``sys.path``."""
    if not sys.flags.no_site:
        return list(sys.path)
    found: Dict[str, None] = dict.fromkeys(filter(None, variables.get("PYTHONPATH", "").split(":")))
    root, with_base = _virtual_environment()
    if with_base and not variables.get("PYTHONNOUSERSITE"):
        _add(found, site.getusersitepackages())
    prefixes = [root] if root else []
    prefixes += [sys.base_prefix, sys.base_exec_prefix] if with_base else []
    for folder in site.getsitepackages(prefixes):
        _add(found, folder)
    return list(found)


def _virtual_environment() -> Tuple[str, bool]:
    """Its root, empty outside of one, and whether the packages of the Python below it count too."""
    beside = os.path.dirname(os.path.abspath(sys.executable))
    for root in (beside, os.path.dirname(beside)):
        try:
            with open(os.path.join(root, "pyvenv.cfg"), encoding="utf-8") as file:
                lines = [line.partition("=") for line in file.read().lower().split("\n")]
        except (OSError, ValueError):
            continue
        settings = {key.strip(): value.strip() for key, _, value in lines}
        return root, settings.get("include-system-site-packages") == "true"
    return "", True


def _add(found: Dict[str, None], folder: str) -> None:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return
    found[folder] = None
    for name in names:
        if name.endswith(".pth") and not name.startswith("."):
            for line in _lines(os.path.join(folder, name)):
                path = os.path.join(folder, line)
                if not line.startswith(("#", "import ", "import\t")) and line and os.path.exists(path):
                    found[path] = None


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file.read().split("\n")]
    except OSError:
        return []
