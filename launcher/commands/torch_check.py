"""What ranks, or a process beside them, say of torch -> findings; an error refuses the run. Runs on the head.

A recipe's ranks are the check themselves: they tell before they meet. Beside the ranks of a script, once they have met, one
more process a node imports torch, at a priority that leaves the processors to the ranks, and ends with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.commands.judge import allowed_codes, save_preflight, torch_question, wanted_of
from launcher.commands.request import Request
from launcher.launch.gate import Gate
from launcher.launch.run_folder import RunFolder
from launcher.preflight.finding import Finding
from launcher.preflight.report import NodeReport
from launcher.preflight.rules import find_faults
from launcher.preflight.rules_torch import torch_works
from launcher.preflight.torch_told import add_torch, merge_ranks, merge_torch_facts

#: where ranks do not meet, or take long for it: by then their own imports are over, or stuck
LOOK_AFTER_S = 10.0
#: a process at the lowest priority beside a script's ranks may take long, and finds their memory on the cards
_NOT_ITS_FAULT = re.compile(r"no answer within|killed by signal 9\b|out of memory|busy or unavailable", re.I)


class TorchCheck(Gate):
    """The judge of one attempt.

    Args:
        earlier: findings that have been told.

    Attributes:
        say: shows a line to the user.
        errors: for which the run is refused.
    """

    def __init__(
        self,
        request: Request,
        reports: Sequence[NodeReport],
        earlier: Sequence[Finding],
        folder: RunFolder,
    ) -> None:
        self.errors: list[Finding] = []
        self.say: Callable[[str], None] = lambda text: None
        self._reports = list(reports)
        self._shown = list(earlier)
        self._folder = folder
        self._wanted = wanted_of(request)
        self._allowed = allowed_codes(request, is_run=True)
        self._is_script = request.spec.recipe is None
        self._ranks: dict[int, dict[int, list[Mapping[str, Any]]]] = {}
        self._ends: dict[int, str] = {}
        self._looks: dict[int, dict[str, Any]] = {}
        self._asked: frozenset[int] = frozenset()

    def questions(self, all_met: bool, waited_s: float) -> Mapping[int, dict[str, Any]]:
        """Scripts: have torch looked at on every node that has one, once that cannot hold up the ranks' start."""
        if not self._is_script or self._asked or not (all_met or waited_s >= LOOK_AFTER_S):
            return {}
        asked = {
            node: torch_question(report, host, "gently")
            for node, (report, host) in enumerate(zip(self._reports, self._wanted.hosts, strict=True))
            if "torch" in report.packages
        }
        self._asked = frozenset(asked)
        return asked

    def hear_rank(self, node: int, rank: int, facts: Mapping[str, Any]) -> None:
        """Take some facts of a rank."""
        self._ranks.setdefault(node, {}).setdefault(rank, []).append(facts)

    def hear_end(self, node: int, rank: int, why: str) -> None:
        """A rank ended in its import of torch, or in its operation; one that told an error did neither."""
        if rank in self._ranks.get(node, ()):
            self._ends[rank] = why

    def hear_look(self, node: int, frame: Mapping[str, Any]) -> bool:
        """Take what the process beside a node's ranks said; it is time to judge when all have, or one found an error."""
        if frame.get("is_cut"):
            return False
        self._looks[node] = _leave_out_ranks_doing(merge_torch_facts(frame["facts"], frame["error"]))
        alone = add_torch(self._reports, {node: self._looks[node]})
        return self._asked == self._looks.keys() or bool(torch_works(alone, self._wanted))

    def passes(self) -> bool:
        """Judge, tell what is new, save it all; False when there is an error that may not pass."""
        by_node = {node: self._merge(ranks) for node, ranks in self._ranks.items()}
        told = {node: merge_ranks(ranks) for node, ranks in by_node.items() if ranks} | self._looks
        findings = find_faults(add_torch(self._reports, told), self._wanted)
        fresh = [finding for finding in findings if finding not in self._shown]
        self._shown += fresh
        self.errors += [each for each in fresh if each.level == "error" and each.code not in self._allowed]
        for finding in fresh:
            if finding not in self.errors and finding.level != "note":
                self.say(finding.to_text(is_allowed=finding.code in self._allowed))
        by_host = {self._reports[node].host: facts for node, facts in sorted(told.items())}
        save_preflight(self._folder, findings, self._allowed, by_host)
        return not self.errors

    def _merge(self, ranks: Mapping[int, list[Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """What each rank said that came as far as to know anything of torch."""
        told = [merge_torch_facts(facts, self._ends.get(rank, "")) for rank, facts in sorted(ranks.items())]
        return [facts for facts in told if "version" in facts or "error" in facts]


def _leave_out_ranks_doing(told: dict[str, Any]) -> dict[str, Any]:
    """Without what a script's own ranks, on the same processors and cards, may have caused: then it is unknown."""
    operations = {card: what for card, what in told["operations"].items() if not _NOT_ITS_FAULT.search(what)}
    if not _NOT_ITS_FAULT.search(told.get("error") or ""):
        return {**told, "operations": operations}
    return {**told, "operations": operations, "is_incomplete": True}
