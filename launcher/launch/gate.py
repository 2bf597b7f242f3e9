"""Gate: whether the ranks of a run may go on, by what they, or a process beside them, say of torch. Runs on the head.

``Supervisor`` hands over what arrives; the one that judges is ``launcher.commands.torch_check.TorchCheck``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Gate:
    """Lets every run pass."""

    def questions(self, all_met: bool, waited_s: float) -> Mapping[int, dict[str, Any]]:
        """What to ask of nodes beside their ranks now: node -> message; asked some ten times a second.

        Args:
            all_met: whether all ranks have come to their rendezvous.
            waited_s: since they were ordered.
        """
        return {}

    def hear_rank(self, node: int, rank: int, facts: Mapping[str, Any]) -> None:
        """Take some facts of a rank."""

    def hear_end(self, node: int, rank: int, why: str) -> None:
        """Take how a rank ended that was not ready yet."""

    def hear_look(self, node: int, frame: Mapping[str, Any]) -> bool:
        """Take what the process beside a node's ranks said; whether it is time to judge."""
        return False

    def passes(self) -> bool:
        """Judge by all that was heard."""
        return True
