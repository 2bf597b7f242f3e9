"""Whether the first node has the checkpoint that a run is to go on from. Runs on the head, before ranks start.

Checkpoints stay on the node that was first, where nodes do not share the run folder: with another one first, a recipe
would begin anew without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.base.errors import PreflightError
from launcher.commands.request import Request
from launcher.launch.fetch import LOOK_LIMIT_S, MANIFEST
from launcher.launch.nodes import Nodes
from launcher.launch.run_state import end_rows
from launcher.preflight.report import NodeReport


def check_resume(nodes: Nodes, request: Request, reports: Sequence[NodeReport]) -> None:
    """Refuse a run that would go on from a checkpoint which lies on another node than its first one.

    Raises:
        PreflightError: it would; the message names both nodes.
    """
    recipe = request.spec.recipe
    if recipe is None or recipe["config"]["checkpoint"]["resume"] != "auto":
        return
    run_dir, first = Path(request.spec.run_dir), nodes.name(0)
    saved = _find_last(run_dir)
    if saved is None or saved["host"] == first:
        return
    path = Path(saved["data"]["path"])
    if reports[0].sees_run_dir is False:
        nodes.send(0, {"kind": "fetch_look", "folder": str(run_dir), "names": []})
        is_there = path.name in nodes.collect("fetch_state", [0], LOOK_LIMIT_S)[0]["checkpoints"]
    else:
        is_there = (run_dir / "checkpoints" / path.name / MANIFEST).is_file()  # a fetched adapter has none
    if not is_there:
        raise PreflightError(
            f"run folder {run_dir}: its newest checkpoint, {path.name}, was written by {saved['host']}; "
            f"{first} is the first node now and does not have it, so the run would begin anew",
            f"put {saved['host']} first in the hostfile, or copy {path} to {first}; "
            "checkpoint.resume=never begins anew",
        )


def _find_last(run_dir: Path) -> dict[str, Any] | None:
    """The event of the newest checkpoint that this folder's runs have told of."""
    for row in end_rows(run_dir / "events.jsonl"):
        if row.get("kind") == "checkpoint" and row.get("host") and (row.get("data") or {}).get("path"):
            return row
    return None
