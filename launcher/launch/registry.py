"""Where this user's runs are: one small file a run in the user's state folder. Written by heads, read by ``ps``.

A file says only where the run folder is; what became of the run stands in the folder itself. Login nodes that share
the home folder share the list.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path

#: runs whose folder is gone, or was never seen from here, are forgotten after so long
FORGET_S = 90 * 86400.0


def registry_folder(environ: Mapping[str, str] | None = None) -> Path:
    """``dcu-launch/runs`` in XDG_STATE_HOME, or in ~/.local/state."""
    environ = os.environ if environ is None else environ
    state = environ.get("XDG_STATE_HOME", "")
    base = Path(state) if state.startswith("/") else Path(os.path.expanduser("~")) / ".local" / "state"
    return base / "dcu-launch" / "runs"


def register_run(run_dir: Path) -> str:
    """Put a run on the list; returns why that failed, empty when it did not: a list is no reason to end a run."""
    folder = registry_folder()
    name = hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:24]
    aside = folder / f".{name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        aside.write_text(
            json.dumps({"run_dir": str(run_dir), "started": time.time()}) + "\n", encoding="utf-8"
        )
        os.replace(aside, folder / f"{name}.json")
        _forget_old(folder)
    except OSError as error:
        return f"{folder}: {error.strerror or error}"
    return ""


def registered_runs() -> list[Path]:
    """Run folders on the list, the newest first, whether or not they can be seen from here."""
    found = []
    with contextlib.suppress(OSError):
        for path in registry_folder().glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                entry = json.loads(path.read_text(encoding="utf-8"))
                found.append((float(entry["started"]), str(entry["run_dir"])))
    return [Path(run_dir) for _, run_dir in sorted(found, reverse=True)]


def _forget_old(folder: Path) -> None:
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            entry = json.loads(path.read_text(encoding="utf-8"))
            if time.time() - float(entry["started"]) > FORGET_S and not os.path.isdir(entry["run_dir"]):
                path.unlink(missing_ok=True)
