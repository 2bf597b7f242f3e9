"""What only a process with the ranks' Python can say: torch, operators, collectives. Runs in a thread of the agent.

Such a process prints facts as marked JSON lines while it finds them, so that one that crashes or hangs has told what it
knew, and what it was trying.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any, Dict, List, Optional

from . import process_tree
from .ask import ask

MARK = "DCU-FACT "
DEFAULT_LIMIT_S = 120.0
#: what may be asked for -> the module that answers
MODULES = {
    "torch": "launcher.train.torch_facts",
    "operators": "launcher.train.operators",
    "collectives": "launcher.train.collectives",
}
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import importlib; "
    "sys.exit(importlib.import_module(sys.argv.pop(1)).main(sys.argv[1:]))"
)


class Beside:
    """The process of a look that stands beside ranks, and ends with them.

    Attributes:
        pid: 0 until it runs.
        is_cut: it was ended before it had told all.
    """

    def __init__(self) -> None:
        self.pid = 0
        self.is_cut = False
        self._started: Optional[int] = None

    def note(self, pid: int) -> None:
        """It runs; in the thread that waits for it."""
        self.pid, self._started = pid, process_tree.start_time(pid)
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """End it, now or as soon as it runs."""
        self.is_cut = True
        if self._started is not None:
            process_tree.send_signal((self.pid, self._started), signal.SIGKILL)


def look(
    message: Dict[str, Any], home: str, variables: Dict[str, str], beside: Optional[Beside] = None
) -> Dict[str, Any]:
    """Run one of ``MODULES`` and return ``facts``, all its lines, and ``error`` when it did not end well.

    Args:
        message: ``what``, ``python``, ``arguments``, ``limit`` in seconds, ``defaults``: variables where unset,
            ``variables`` and ``unset``: the last word on some.
        home: the folder that holds our code.
        variables: the ranks' environment.
        beside: holds the process, where it stands beside ranks; ``is_cut`` in the answer: it was ended with them.
    """
    environment = dict(message.get("defaults") or {})
    environment.update(variables)
    for name in message.get("unset", ()):
        environment.pop(name, None)
    environment.update(message.get("variables") or {})
    python = message.get("python") or sys.executable
    words = [python, "-u", "-c", _PROGRAM, home, MODULES[message["what"]], *message.get("arguments", ())]
    beside = beside or Beside()
    answer = ask(words, environment, float(message.get("limit", DEFAULT_LIMIT_S)), on_start=beside.note)
    facts = read_facts(answer.text)
    # a traceback's last line says most; what it printed before the mark is of no use to anybody
    return {
        "kind": "looked", "what": message["what"], "facts": facts, "error": answer.error[-600:], "is_cut": beside.is_cut,
    }  # fmt: skip


def read_facts(text: str) -> List[Dict[str, Any]]:
    """The marked lines of an output, whatever stands between them."""
    found = []
    for line in text.split("\n"):
        if line.startswith(MARK):
            try:
                value = json.loads(line[len(MARK) :])
            except ValueError:
                continue
            if isinstance(value, dict):
                found.append(value)
    return found
