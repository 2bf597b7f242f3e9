"""Start all ranks, watch them, stop all at the first failure. Runs on the head, in its main thread.

In: a plan and the open nodes. Out: an ``Outcome`` and, on the way, everything that ranks say, to a view and the run folder.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.launch.fetch_best import BestFetch
from launcher.launch.gate import Gate
from launcher.launch.nodes import Nodes
from launcher.launch.order import LaunchPlan, RunSpec, node_message
from launcher.launch.outcome import Outcome, RankExit
from launcher.launch.rank_states import RankState, find_awaited, name_ranks, span
from launcher.launch.run_folder import RunFolder
from launcher.launch.signals import INTERRUPTING, STOPPING
from launcher.launch.view import View
from launcher.remote.session import Arrival

BROKEN_GRACE_S = 1.0
#: after the first failure, so long others may still tell theirs before the stop: who was first is often not who is heard first
SETTLE_S = 0.2
#: after an error of the check beside a script's ranks: other nodes' checks may end meanwhile
LOOKS_SETTLE_S = 1.0
#: beyond the time to stop: what the agents may take to kill, clean up and answer
STOP_SLACK_S = 8.0
WAITING_EVERY_S = 5.0
#: rows that a rank tells -> the file they belong to, where its node does not see the run folder
FILES_OF_ROWS = {"metric": "metrics.jsonl", "sample": "samples.jsonl"}


@dataclass
class Supervisor:
    """Watches one attempt of a run.

    Attributes:
        start_limit_s: ranks that are not up and joined so long after the order are late.
        save_limit_s: what ranks have to save and end after SIGUSR1.
        gate: says whether they may go on, by what is heard of torch.
        best: fetches best checkpoints' adapters of nodes that do not see the run folder.
        sees_run_dir: for each node, whether it writes into the head's run folder itself.
    """

    nodes: Nodes
    plan: LaunchPlan
    spec: RunSpec
    folder: RunFolder
    view: View
    sees_run_dir: Sequence[bool]
    start_limit_s: float
    save_limit_s: float = 300.0
    gate: Gate = field(default_factory=Gate)
    best: BestFetch | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    failures: list[RankExit] = field(default_factory=list)
    left: list[tuple[str, int]] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    had_metric: bool = False
    saved_step: int | None = None
    _stop_how: str = ""
    _stop_until: float = 0.0
    _settle_until: float | None = None
    _signal: int = 0
    _asked_by: str = ""
    _forced: bool = False
    _late: str = ""
    _refused: bool = False
    _judge_at: float | None = None
    _go_told: bool = False
    _next_word: float = 0.0
    _failed_by_itself: bool = False
    _met: set[int] = field(default_factory=set)
    _quiet_nodes: set[int] = field(default_factory=set)

    def run(self) -> Outcome:
        """Send the orders and stay until every rank of every node that is not lost has ended."""
        for order in self.plan.nodes:
            for rank in order.ranks:
                self.ranks[rank.rank] = RankState(order.node_rank)
            stream_all = not self.sees_run_dir[order.node_rank]
            self.nodes.send(order.node_rank, node_message(order, self.spec, self.plan.attempt, stream_all))
        begun = self.nodes.clock()
        self._next_word = begun + WAITING_EVERY_S
        while not self._finished():
            for arrival in self.nodes.arrivals(self.nodes.clock() + 0.1):
                self._take(arrival)
                if self._finished():
                    break
            self._watch_clock(begun)
        return self._conclude()

    @property
    def is_up(self) -> bool:
        """Whether every rank of every node was started and, in a recipe, has its training stack."""
        if self.spec.recipe is not None:
            return self._go_told
        return bool(self.ranks) and all(entry.state != "waiting" for entry in self.ranks.values())

    @property
    def can_save(self) -> bool:
        """Whether a word to the ranks of a recipe would reach them all: they may train, and nobody stops them."""
        return self._go_told and not self._stop_how

    @property
    def is_stopping(self) -> bool:
        """Whether the ranks were told to end."""
        return bool(self._stop_how)

    def _finished(self) -> bool:
        living = set(self.nodes.alive)
        if living <= self._quiet_nodes:
            return True
        return bool(self._stop_how) and self.nodes.clock() > self._stop_until

    # ---- what arrives

    def _take(self, arrival: Arrival) -> None:
        if arrival.signal_number:
            by = arrival.frame.get("by", "") if isinstance(arrival.frame, dict) else ""
            self._on_signal(arrival.signal_number, by)
        elif arrival.lost:
            self._on_lost(arrival.node, arrival.lost)
        elif self.best is not None and self.best.take(arrival):
            pass
        elif isinstance(arrival.frame, tuple):
            self._on_output(arrival.node, *arrival.frame)
        elif isinstance(arrival.frame, dict):
            handler = getattr(self, f"_on_{arrival.frame['kind']}", None)
            if handler is not None:
                handler(arrival.node, arrival.frame)

    def _on_output(self, node: int, rank: int, data: bytes) -> None:
        self.view.rank_output(rank, data)
        if not self.sees_run_dir[node]:
            log = next(order.log_dir for order in self.plan.nodes if order.node_rank == node)
            self.folder.append(f"{log.removeprefix(self.spec.run_dir + '/')}/rank-{rank:05d}.log", data)

    def _on_started(self, node: int, frame: dict[str, Any]) -> None:
        for rank, pid in frame["pids"].items():
            self.ranks[int(rank)].state = "started"
            self._note("rank_started", host=self.nodes.name(node), rank=int(rank), data={"pid": pid})

    def _on_joined(self, node: int, frame: dict[str, Any]) -> None:
        for rank in map(int, frame["ranks"]):
            self._met.add(rank)
            if self.ranks[rank].state != "ended":
                self.ranks[rank].state = "joined"

    def _on_fault(self, node: int, frame: dict[str, Any]) -> None:
        rank, host = int(frame.get("rank", self.plan.nodes[node].ranks[0].rank)), self.nodes.name(node)
        self._fail(RankExit(rank, host, 127, None, str(frame["error"]), "", len(self.failures), False))

    def _on_event(self, node: int, frame: dict[str, Any]) -> None:
        event, rank = frame["event"], int(frame["rank"])
        kind, data, step = event["kind"], event.get("data", {}), event.get("step")
        if kind in ("rank_torch", "rank_ready"):
            self.gate.hear_rank(node, rank, data)
        if kind == "rank_ready":
            self._mark_ready(rank)
        elif kind == "metric":
            self.had_metric = True
            self.view.metric(step, data)
        elif kind in ("note", "warning"):
            self.view.status(f"{'warning: ' if kind == 'warning' else ''}{data.get('message', '')}")
        elif kind == "result":
            self.results.update({str(key): str(value) for key, value in data.items()})
        elif kind == "checkpoint":
            self.saved_step = step
            if self.best is not None and not self.sees_run_dir[node]:
                self.best.hear(node, data)
        if kind in FILES_OF_ROWS and not self.sees_run_dir[node]:
            row = json.dumps({"step": step, **data}, ensure_ascii=False)
            self.folder.append(FILES_OF_ROWS[kind], f"{row}\n".encode())
        if kind not in ("metric", "rank_torch"):
            self._note(kind, host=self.nodes.name(node), rank=rank, step=step, data=data, at=frame["time"])

    def _mark_ready(self, rank: int) -> None:
        if self.ranks[rank].state != "ended":
            self.ranks[rank].state = "ready"
        if not self._go_told and all(
            entry.state in ("ready", "joined", "ended") for entry in self.ranks.values()
        ):
            self._go_told = True
            if self._may_go_on():
                self.nodes.send_all({"kind": "go"})

    def _on_looked(self, node: int, frame: dict[str, Any]) -> None:
        if self.gate.hear_look(node, frame) and self._judge_at is None:
            self._judge_at = self.nodes.clock() + LOOKS_SETTLE_S

    def _ask_beside(self, waited_s: float) -> None:
        for node, question in self.gate.questions(len(self._met) == len(self.ranks), waited_s).items():
            self.nodes.send(node, question)

    def _may_go_on(self) -> bool:
        """Whether nothing that was heard of torch refuses the run; else it is stopped."""
        if self._stop_how:
            return False
        self._refused = not self.gate.passes()
        if self._refused:
            self._stop("broken", BROKEN_GRACE_S)
        return not self._refused

    def _on_rank_exit(self, node: int, frame: dict[str, Any]) -> None:
        rank, status = int(frame["rank"]), int(frame["status"])
        if status < 0 and not self._stop_how and self.ranks[rank].state in ("waiting", "started"):
            self.gate.hear_end(node, rank, f"killed by signal {-status}")
        self.ranks[rank].state = "ended"
        host = self.nodes.name(node)
        self._note("rank_exit", host=host, rank=rank, data={"status": status}, at=frame["time"])
        if status == 0:
            return
        after_stop = bool(frame["stopping"]) or bool(self._stop_how)
        code, number = (status, None) if status > 0 else (None, -status)
        self._fail(
            RankExit(rank, host, code, number, frame["tail"], frame["log"], len(self.failures), after_stop)
        )

    def _on_stopped(self, node: int, frame: dict[str, Any]) -> None:
        self._quiet_nodes.add(node)
        self.left += [(self.nodes.name(node), pid) for pid in frame["left"]]
        if frame.get("log_error"):
            self.view.status(
                f"warning: {self.nodes.name(node)}: a log could not be written: {frame['log_error']}"
            )

    def _on_lost(self, node: int, why: str) -> None:
        if node in self._quiet_nodes:
            return
        name = self.nodes.name(node)
        ranks = span([rank for rank, entry in self.ranks.items() if entry.node == node])
        self.view.status(f"lost {name} ({ranks}): {why}; stopping the others")
        self._note("node_lost", host=name, data={"why": why})
        self._stop("broken", 0.0 if self._signal else BROKEN_GRACE_S)

    def _fail(self, failure: RankExit) -> None:
        self.failures.append(failure)
        if not self._stop_how and self._settle_until is None:
            self._settle_until = self.nodes.clock() + SETTLE_S

    def _on_signal(self, number: int, by: str = "") -> None:
        name = by or signal.Signals(number).name
        if not self._signal:
            self._signal, self._asked_by = number, by
            self._failed_by_itself = any(not failure.was_ended_by(STOPPING) for failure in self.failures)
            grace_s = self.save_limit_s if number == INTERRUPTING else self.spec.grace_s
            what = "save and end" if number == INTERRUPTING else "end"
            count = "1 rank" if len(self.ranks) == 1 else f"{len(self.ranks)} ranks"
            self.view.status(f"{name}: asking {count} to {what}, within {grace_s:.0f} s")
            self._note("stop", data={"signal": name})
            self._stop("asked", grace_s)
        elif self._signal == INTERRUPTING and number != INTERRUPTING:
            self._signal = number
            self.view.status(f"{name}: no more than {self.spec.grace_s:.0f} s from now")
            self._note("stop", data={"signal": name})
            self._stop("asked", self.spec.grace_s)
        elif number == signal.SIGINT and not self._forced:
            self._forced = True
            self.view.status(f"{by or 'SIGINT again'}: killing all ranks now")
            self._stop("broken", 0.0)

    # ---- time

    def _watch_clock(self, begun: float) -> None:
        now = self.nodes.clock()
        if self.best is not None:
            self.best.tick()
        if not self._stop_how:
            self._ask_beside(now - begun)
        if self._judge_at is not None and now >= self._judge_at:
            self._judge_at = None
            self._may_go_on()
        if self._settle_until is not None and now >= self._settle_until:
            self._settle_until = None
            if self.spec.recipe is None or self._go_told or self._may_go_on():
                self._stop("broken", BROKEN_GRACE_S)
        waiting = self._awaited()
        if waiting and now >= self._next_word:
            self._next_word = now + WAITING_EVERY_S
            self.view.status(f"waiting for {self._name_ranks(waiting)}")
        if waiting and now - begun > self.start_limit_s:
            self._late = self._name_ranks(waiting)
            if self._go_told or self._may_go_on():
                self._stop("broken", BROKEN_GRACE_S)

    def _awaited(self) -> list[int]:
        if self._stop_how:
            return []
        is_recipe = self.spec.recipe is not None
        return find_awaited(self.ranks, is_recipe=is_recipe, go_told=self._go_told, any_met=bool(self._met))

    def _note(self, kind: str, **fields: Any) -> None:
        self.folder.add_event(kind, attempt=self.plan.attempt, **fields)

    def _name_ranks(self, ranks: Sequence[int]) -> str:
        return name_ranks(ranks, self.ranks, self.nodes.name)

    def _stop(self, how: str, grace_s: float) -> None:
        if self._stop_how == "broken" and how == "broken" and not self._forced:
            return
        self._stop_how = how
        if self.best is not None and self._signal != INTERRUPTING:
            self.best.give_up()
        self._settle_until = None
        self._stop_until = self.nodes.clock() + grace_s + STOP_SLACK_S
        self.nodes.send_all({"kind": "stop", "how": how, "grace": grace_s})

    def _conclude(self) -> Outcome:
        lost = [
            (self.nodes.name(node), why)
            for node, why in self.nodes.lost.items()
            if node not in self._quiet_nodes
        ]
        silent = [node for node in self.nodes.alive if node not in self._quiet_nodes]
        lost += [(self.nodes.name(node), "did not confirm the end of its ranks") for node in silent]
        first = [failure for failure in self.failures if not failure.after_stop]
        kind = "done"
        if self._signal and not self._failed_by_itself:
            kind = self._kind_of_stop()
        elif self._refused:
            kind = "refused"
        elif first:
            kind = "rank_failed"
        elif lost:
            kind = "node_lost"
        elif self._late:
            kind = "late"
        elif self.failures:
            kind = "rank_failed"
        again = (
            kind == "rank_failed"
            and not self.had_metric
            and 0 not in self._met
            and any(failure.lost_its_port(self.plan.master_port) for failure in first)
        )
        return Outcome(
            kind,
            tuple(self.failures),
            tuple(lost),
            self._late,
            self._signal,
            tuple(self.left),
            again,
            self._forced,
            self.saved_step,
            self.results,
            self._asked_by,
        )

    def _kind_of_stop(self) -> str:
        """What a signal made of the run; one that asked for a save may have come when all was done."""
        if self._signal != INTERRUPTING:
            return "stopped"
        return "done" if "path" in self.results and not self.failures else "interrupted"
