"""One attempt of a run: view, supervisor, board and what others ask, wired together. Runs on the head."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher.base.errors import NodeLostError
from launcher.commands.outside import Outside
from launcher.commands.request import Request
from launcher.commands.torch_check import TorchCheck
from launcher.hosts.host import unique_labels
from launcher.launch.board import NODES_FILE, Board
from launcher.launch.fetch_best import BestFetch
from launcher.launch.gate import Gate
from launcher.launch.nodes import Nodes
from launcher.launch.order import LaunchPlan
from launcher.launch.outcome import Outcome
from launcher.launch.run_folder import RunFolder
from launcher.launch.supervise import Supervisor
from launcher.launch.view import View
from launcher.preflight.report import NodeReport

if TYPE_CHECKING:
    from launcher.report.diagnosis.verdict import Verdict
    from launcher.report.terminal import TerminalView


def watch_attempt(
    nodes: Nodes,
    request: Request,
    reports: Sequence[NodeReport],
    folder: RunFolder,
    plan: LaunchPlan,
    gate: Gate,
    outside: Outside,
) -> Outcome:
    """Start all ranks and stay until they have ended."""
    from launcher.report.picture import Picture
    from launcher.report.terminal import TerminalView

    labels = unique_labels(request.hosts)
    hosts_of_ranks = [labels[order.node_rank] for order in plan.nodes for _ in order.ranks]
    steps = (request.spec.recipe or {}).get("config", {}).get("train", {}).get("max_steps")
    plain = request.options["plain"]
    view = TerminalView(
        sys.stdout,
        hosts_of_ranks=hosts_of_ranks,
        ranks=_shown_ranks(request, len(hosts_of_ranks)),
        color=sys.stdout.isatty() and not _no_color(),
        total_steps=steps,
        picture=None if plain else Picture(request.spec.name, steps, outside.started, hosts_of_ranks),
    )
    sees_run_dir = [report.sees_run_dir is not False for report in reports]
    best = None if all(sees_run_dir) else BestFetch(nodes, folder.path, view.status)
    supervisor = Supervisor(
        nodes=nodes,
        plan=plan,
        spec=request.spec,
        folder=folder,
        view=_judging(view, request, plan, folder),
        sees_run_dir=sees_run_dir,
        start_limit_s=request.options["start_timeout"],
        save_limit_s=request.options["save_grace"],
        gate=gate,
        best=best,
    )
    if isinstance(gate, TorchCheck):
        gate.say = view.status

    def save(text: str) -> None:
        folder.write_text(NODES_FILE, text)

    board = Board(supervisor, view.nodes, save, request.options["gauges_every"])

    def tick() -> None:
        now = time.monotonic()
        board.tick(now)
        view.tick(now)
        outside.serve(supervisor)

    nodes.set_tick(tick)
    try:
        outcome = supervisor.run()
        if best is not None:
            finish_best(best, outcome, view.status)
        return outcome
    finally:
        nodes.set_tick(lambda: None)
        view.close()


def finish_best(best: BestFetch, outcome: Outcome, tell: Callable[[str], None]) -> None:
    """Have the best adapter here before anything else is asked of its node, or nothing of it.

    Raises:
        StoppedError: Ctrl-C while it came.
    """
    if outcome.kind not in ("done", "interrupted"):
        best.give_up()
    try:
        best.finish()
    except NodeLostError as error:
        tell(error.message)
    if best.here:
        tell(f"the adapter of the best checkpoint is here: checkpoints/{best.here}/adapter")


def _judging(view: TerminalView, request: Request, plan: LaunchPlan, folder: RunFolder) -> View:
    """The view of a recipe's run also says what stands out on its curve; a script's has none that we know."""
    if request.spec.recipe is None:
        return view
    from launcher.report.diagnosis.live import JudgingView

    def tell(verdict: Verdict, line: str) -> None:
        view.status(f"warning: {line}")
        folder.add_event("warning", data={"message": line, "verdict": verdict.code})

    return JudgingView(view, request.spec.recipe["config"], plan.to_dict(), tell)


def _shown_ranks(request: Request, world_size: int) -> frozenset[int] | None:
    """In the background nobody looks: what ranks say is in their logs, unless some are named."""
    if request.options["detach"] and request.options["shown_ranks"] is None:
        return frozenset()
    return request.shown_ranks(world_size)


def _no_color() -> bool:
    return bool(os.environ.get("NO_COLOR"))
