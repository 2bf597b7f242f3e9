"""Ranks watched over sessions without hosts: who failed first, who is waited for, what is stopped how, and how it ended."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.base.env import plan_envs
from launcher.hosts.hostfile import parse_hostfile
from launcher.launch import supervise
from launcher.launch.gate import Gate
from launcher.launch.nodes import Nodes
from launcher.launch.order import Meeting, RunSpec
from launcher.launch.outcome import Outcome
from launcher.launch.plan import make_plan
from launcher.launch.run_folder import RunFolder
from launcher.launch.supervise import Supervisor
from launcher.remote.session import Arrival, Inbox
from tests.fakes.session import FakeSession

TAKEN = "[Errno 98] The server socket has failed to listen. port: 29511, code: -98, EADDRINUSE, address already in use"


class View:
    """Keeps what would be shown."""

    def __init__(self) -> None:
        self.output: list[tuple[int, bytes]] = []
        self.words: list[str] = []
        self.metrics: list[tuple[int, dict[str, Any]]] = []

    def rank_output(self, rank: int, data: bytes) -> None:
        self.output.append((rank, data))

    def status(self, text: str) -> None:
        self.words.append(text)

    def metric(self, step: int, data: dict[str, Any]) -> None:
        self.metrics.append((step, data))


class Course:
    """A run of 2 x 2 ranks whose nodes say what a test lets them say.

    Args:
        recipe: ranks report ``rank_ready`` and wait for ``go``.
        grace: ``--grace``.
        sees: whether each node sees the run folder.
    """

    def __init__(self, folder: Path, *, recipe: bool = False, sees: tuple[bool, bool] = (True, True)) -> None:
        self.inbox = Inbox()
        self.sessions = [FakeSession(node, f"node00{node + 1}", self.inbox, self._answer) for node in (0, 1)]
        self.nodes = Nodes(self.sessions, self.inbox, 10.0, tick=lambda: None)
        self.folder = RunFolder(folder, "run")
        self.view = View()
        hosts = parse_hostfile("node001 slots=2\nnode002 slots=2\n", "hosts")
        spec = RunSpec(
            name="run",
            kind="recipe" if recipe else "script",
            target="x.py",
            arguments=(),
            workdir="/project",
            run_dir=str(folder),
            recipe={"config": {}, "config_hash": "h"} if recipe else None,
            grace_s=7.0,
        )
        meeting = Meeting("10.0.0.1", 29511, ("eth0", "eth0"))
        plan = make_plan(spec, hosts, plan_envs({}, {}, [], [], hosts), [None, None], meeting)
        self.supervisor = Supervisor(
            nodes=self.nodes,
            plan=plan,
            spec=spec,
            folder=self.folder,
            view=self.view,
            sees_run_dir=sees,
            start_limit_s=600.0,
        )
        #: what nodes do about a stop: by default all their ranks end by the signal
        self.on_stop: Callable[[FakeSession, dict[str, Any]], None] = self.end_by_signal
        self.ended: set[int] = set()

    def _answer(self, session: FakeSession, message: dict[str, Any]) -> None:
        if message["kind"] == "order":
            session.say(
                kind="started", pids={str(entry["rank"]): 100 + entry["rank"] for entry in message["ranks"]}
            )
        elif message["kind"] == "stop":
            self.on_stop(session, message)

    def end_by_signal(self, session: FakeSession, message: dict[str, Any]) -> None:
        for rank in (2 * session.node, 2 * session.node + 1):
            if rank not in self.ended:
                self.exit(rank, -signal.SIGTERM, stopping=message["how"])

    def exit(self, rank: int, status: int, tail: str = "", stopping: str = "") -> None:
        """The end of a rank; the last one of a node stops it."""
        self.ended.add(rank)
        session = self.sessions[rank // 2]
        session.exit(rank, status, tail, stopping)
        if self.ended >= {2 * session.node, 2 * session.node + 1}:
            session.stopped()

    def signal(self, number: int) -> None:
        """A signal to the head."""
        self.inbox.put(Arrival(-1, signal_number=number))

    def run(self, *acts: Callable[[], object], pause_s: float = 0.0) -> Outcome:
        """The run, while another thread lets things happen."""

        def play() -> None:
            for act in acts:
                time.sleep(pause_s)
                act()

        player = threading.Thread(target=play)
        player.start()
        outcome = self.supervisor.run()
        player.join()
        return outcome

    def stops(self, node: int = 0) -> list[tuple[str, float]]:
        """The stops that a node was sent."""
        return [(m["how"], m["grace"]) for m in self.sessions[node].sent if m["kind"] == "stop"]

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder.path / "events.jsonl").read_text().splitlines()]

    def close(self) -> None:
        self.nodes._ended.set()
        self.folder.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Course]]:
    """Makes a course, and ends its pings afterwards."""
    courses: list[Course] = []

    def make(**options: Any) -> Course:
        courses.append(Course(tmp_path / "run", **options))
        return courses[-1]

    yield make
    for course in courses:
        course.close()


@pytest.fixture
def course(start: Callable[..., Course]) -> Course:
    return start()


def quick(monkeypatch: pytest.MonkeyPatch, **limits: float) -> None:
    for name, value in limits.items():
        monkeypatch.setattr(supervise, name, value)


# ---- ends


def test_all_ranks_end_well(course: Course) -> None:
    outcome = course.run(*(lambda rank=rank: course.exit(rank, 0) for rank in (3, 0, 2, 1)))
    assert outcome.kind == "done"
    assert (outcome.failures, outcome.lost, outcome.left, outcome.signal_number) == ((), (), (), 0)
    assert course.stops() == []
    orders = [
        message for session in course.sessions for message in session.sent if message["kind"] == "order"
    ]
    assert [[entry["rank"] for entry in order["ranks"]] for order in orders] == [[0, 1], [2, 3]]
    events = course.events()
    started = {e["rank"]: e["data"] for e in events if e["kind"] == "rank_started"}
    assert started == {rank: {"pid": 100 + rank} for rank in range(4)}
    assert sorted((e["host"], e["rank"]) for e in events if e["kind"] == "rank_exit") == [
        ("node001", 0), ("node001", 1), ("node002", 2), ("node002", 3),
    ]  # fmt: skip


def test_the_first_failure_stops_all_and_later_ones_are_marked(course: Course) -> None:
    begun = time.monotonic()
    outcome = course.run(lambda: course.exit(3, 3, "ValueError: x"))
    assert time.monotonic() - begun < supervise.SETTLE_S + 2
    assert outcome.kind == "rank_failed"
    first, *others = outcome.failures
    assert (first.rank, first.host, first.code, first.signal, first.after_stop) == (
        3,
        "node002",
        3,
        None,
        False,
    )
    assert (first.tail, first.log_path) == ("ValueError: x", "/run/logs/node002/rank-00003.log")
    assert {(end.rank, end.signal, end.after_stop) for end in others} == {
        (0, 15, True), (1, 15, True), (2, 15, True),
    }  # fmt: skip
    assert course.stops(0) == course.stops(1) == [("broken", supervise.BROKEN_GRACE_S)]


def test_who_fails_a_moment_later_is_told_as_well(course: Course) -> None:
    outcome = course.run(
        lambda: course.exit(0, 1, "Connection closed by peer"), lambda: course.exit(2, -9), pause_s=0.02
    )
    assert [(end.rank, end.after_stop) for end in outcome.failures[:2]] == [(0, False), (2, False)]
    assert [end.seq for end in outcome.failures] == [0, 1, 2, 3]


def test_a_program_that_cannot_start_is_a_failed_rank(course: Course) -> None:
    def fault() -> None:
        course.sessions[1].say(kind="fault", rank=2, error="/no/python: No such file or directory")
        course.ended |= {2, 3}
        course.sessions[1].stopped()

    outcome = course.run(fault)
    assert outcome.kind == "rank_failed"
    assert (outcome.failures[0].rank, outcome.failures[0].code) == (2, 127)
    assert outcome.failures[0].tail == "/no/python: No such file or directory"


def test_what_kill_does_not_end_is_told(course: Course) -> None:
    def stuck(session: FakeSession, message: dict[str, Any]) -> None:
        session.stopped(left=(4711,))

    course.on_stop = stuck
    outcome = course.run(lambda: course.exit(0, 1))
    assert outcome.left == (("node001", 4711), ("node002", 4711))


# ---- losses


def test_a_lost_node_stops_the_others(course: Course) -> None:
    outcome = course.run(lambda: course.sessions[1].hang_up("no answer for 10 s"))
    assert outcome.kind == "node_lost"
    assert outcome.lost == (("node002", "no answer for 10 s"),)
    assert course.stops(0) == [("broken", supervise.BROKEN_GRACE_S)]
    assert course.stops(1) == []
    assert course.view.words == ["lost node002 (ranks 2-3): no answer for 10 s; stopping the others"]
    assert [e["host"] for e in course.events() if e["kind"] == "node_lost"] == ["node002"]


def test_a_node_that_does_not_confirm_the_stop_is_told_as_lost(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, STOP_SLACK_S=0.3, BROKEN_GRACE_S=0.1)
    course.on_stop = lambda session, message: session.node == 0 and course.end_by_signal(session, message)
    outcome = course.run(lambda: course.exit(0, 1))
    assert outcome.kind == "rank_failed"
    assert outcome.lost == (("node002", "did not confirm the end of its ranks"),)


def test_all_nodes_lost_is_an_end(course: Course) -> None:
    course.on_stop = lambda session, message: None
    outcome = course.run(course.sessions[0].hang_up, course.sessions[1].hang_up)
    assert (outcome.kind, [host for host, _ in outcome.lost]) == ("node_lost", ["node001", "node002"])


def test_an_agent_that_ends_after_its_ranks_is_not_lost(course: Course) -> None:
    acts = [lambda: course.exit(2, 0), lambda: course.exit(3, 0), course.sessions[1].hang_up]
    outcome = course.run(*acts, lambda: course.exit(0, 0), lambda: course.exit(1, 0), pause_s=0.02)
    assert (outcome.kind, outcome.lost) == ("done", ())


# ---- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_asks_all_ranks_once(course: Course, number: signal.Signals) -> None:
    outcome = course.run(lambda: course.signal(number), lambda: course.signal(signal.SIGTERM))
    assert (outcome.kind, outcome.signal_number, outcome.forced) == ("stopped", number, False)
    assert course.stops(0) == course.stops(1) == [("asked", 7.0)]
    assert course.view.words == [f"{number.name}: asking 4 ranks to end, within 7 s"]
    assert all(end.after_stop for end in outcome.failures)


def test_usr1_gives_ranks_time_to_save_and_the_run_goes_on_later(course: Course) -> None:
    outcome = course.run(lambda: course.signal(signal.SIGUSR1), lambda: course.signal(signal.SIGUSR1))
    assert (outcome.kind, outcome.signal_number) == ("interrupted", signal.SIGUSR1)
    assert course.stops(0) == course.stops(1) == [("asked", 300.0)]
    assert course.view.words == ["SIGUSR1: asking 4 ranks to save and end, within 300 s"]


def test_the_step_that_was_saved_is_known(start: Callable[..., Course]) -> None:
    course = start(recipe=True)

    def save(session: FakeSession, message: dict[str, Any]) -> None:
        if session.node == 0:
            event = {"kind": "checkpoint", "step": 12, "data": {"path": "/run/checkpoints/step-00000012"}}
            session.say(kind="event", rank=0, time=1.0, event=event)
        course.end_by_signal(session, message)

    course.on_stop = save
    outcome = course.run(lambda: course.signal(signal.SIGUSR1))
    assert (outcome.kind, outcome.saved_step) == ("interrupted", 12)


def test_usr1_after_the_last_step_leaves_a_run_done(start: Callable[..., Course]) -> None:
    course = start(recipe=True)

    def end(session: FakeSession, message: dict[str, Any]) -> None:
        if session.node == 0:
            session.say(
                kind="event", rank=0, time=1.0, event={"kind": "result", "data": {"path": "/run/adapter"}}
            )
        for rank in (2 * session.node, 2 * session.node + 1):
            course.exit(rank, 0, stopping="asked")

    course.on_stop = end
    assert course.run(lambda: course.signal(signal.SIGUSR1)).kind == "done"


def test_whoever_asks_later_may_wait_less_long(course: Course) -> None:
    course.on_stop = lambda session, message: (
        message["grace"] == 7.0 and course.end_by_signal(session, message)
    )
    outcome = course.run(
        lambda: course.signal(signal.SIGUSR1), lambda: course.signal(signal.SIGTERM), pause_s=0.05
    )
    assert (outcome.kind, outcome.signal_number) == ("stopped", signal.SIGTERM)
    assert course.stops() == [("asked", 300.0), ("asked", 7.0)]


def test_a_rank_that_fails_while_it_saves_does_not_cut_the_others_short(course: Course) -> None:
    def slow(session: FakeSession, message: dict[str, Any]) -> None:
        if session.node == 1:
            course.exit(2, 1, "disk full", stopping="asked")
            timer = threading.Timer(
                0.6, lambda: [course.exit(rank, 143, stopping="asked") for rank in (3, 0, 1)]
            )
            timer.start()

    course.on_stop = slow
    outcome = course.run(lambda: course.signal(signal.SIGTERM))
    assert course.stops() == [("asked", 7.0)]
    assert outcome.kind == "stopped"
    assert [(end.rank, end.code) for end in outcome.failures] == [(2, 1), (3, 143), (0, 143), (1, 143)]


def test_a_second_interrupt_kills_at_once(course: Course) -> None:
    course.on_stop = lambda session, message: (
        message["how"] == "broken" and course.end_by_signal(session, message)
    )
    outcome = course.run(
        lambda: course.signal(signal.SIGINT), lambda: course.signal(signal.SIGINT), pause_s=0.05
    )
    assert (outcome.kind, outcome.signal_number, outcome.forced) == ("stopped", signal.SIGINT, True)
    assert course.stops() == [("asked", 7.0), ("broken", 0.0)]


def test_an_interrupt_after_a_failure_does_not_hide_it(course: Course) -> None:
    outcome = course.run(lambda: course.exit(1, 3, "ValueError: x"), lambda: course.signal(signal.SIGINT))
    assert (outcome.kind, outcome.signal_number) == ("rank_failed", signal.SIGINT)
    assert outcome.failures[0].rank == 1


@pytest.mark.parametrize("status", [-signal.SIGTERM, 143])
def test_ranks_that_were_signalled_with_the_head_are_no_failures(course: Course, status: int) -> None:
    """scancel signals every process of a job at once."""
    outcome = course.run(lambda: course.exit(1, status), lambda: course.signal(signal.SIGTERM))
    assert (outcome.kind, outcome.signal_number) == ("stopped", signal.SIGTERM)


def test_a_node_lost_while_ranks_save_ends_the_grace(course: Course) -> None:
    course.on_stop = lambda session, message: (
        message["how"] == "broken" and course.end_by_signal(session, message)
    )
    outcome = course.run(lambda: course.signal(signal.SIGTERM), course.sessions[1].hang_up, pause_s=0.05)
    assert course.stops(0) == [("asked", 7.0), ("broken", 0.0)]
    assert outcome.kind == "stopped"
    assert outcome.lost == (("node002", "the agent ended"),)


# ---- who is waited for


def test_late_ranks_are_named_and_the_start_is_given_up(
    course: Course, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, WAITING_EVERY_S=0.1)
    course.supervisor.start_limit_s = 4.0
    begun = time.monotonic()
    outcome = course.run(lambda: course.sessions[0].say(kind="joined", ranks=[0, 1]))
    assert time.monotonic() - begun < 9
    assert (outcome.kind, outcome.late) == ("late", "node002 (ranks 2-3)")
    assert "waiting for node002 (ranks 2-3)" in course.view.words
    assert course.stops(0) == course.stops(1) == [("broken", supervise.BROKEN_GRACE_S)]


def test_who_comes_in_time_is_not_late(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, WAITING_EVERY_S=0.1)
    course.supervisor.start_limit_s = 0.6
    joined = [
        lambda: course.sessions[0].say(kind="joined", ranks=[0, 1]),
        lambda: course.sessions[1].say(kind="joined", ranks=[3]),
    ]
    last = lambda: course.sessions[1].say(kind="joined", ranks=[2])  # noqa: E731
    ends = [lambda rank=rank: course.exit(rank, 0) for rank in range(4)]
    outcome = course.run(*joined, last, *ends, pause_s=0.15)
    assert outcome.kind == "done"
    assert set(course.view.words) == {"waiting for node002 (ranks 2-3)", "waiting for node002 (rank 2)"}


@pytest.mark.parametrize("met", [[], [0, 1]])
def test_scripts_that_never_meet_or_have_met_are_not_bothered(
    course: Course, monkeypatch: pytest.MonkeyPatch, met: list[int]
) -> None:
    quick(monkeypatch, WAITING_EVERY_S=0.1)
    course.supervisor.start_limit_s = 0.2
    first = [lambda: course.exit(0, 0)] if met else []
    acts = [*first, lambda: course.sessions[0].say(kind="joined", ranks=met), *[lambda: None] * 3]
    outcome = course.run(*acts, *(lambda rank=rank: course.exit(rank, 0) for rank in range(4)), pause_s=0.1)
    assert (outcome.kind, course.view.words) == ("done", [])


def test_ranks_of_a_recipe_go_when_all_are_ready(
    start: Callable[..., Course], monkeypatch: pytest.MonkeyPatch
) -> None:
    quick(monkeypatch, WAITING_EVERY_S=0.1)
    course = start(recipe=True)

    def ready(rank: int) -> None:
        event = {"kind": "rank_ready", "data": {"torch": "2.13"}}
        course.sessions[rank // 2].say(kind="event", rank=rank, event=event, time=1.0)

    def check() -> None:
        assert [session.kinds() for session in course.sessions] == [["order"], ["order"]]

    acts = [lambda rank=rank: ready(rank) for rank in (0, 1, 2)]
    ends = [lambda rank=rank: course.exit(rank, 0) for rank in range(4)]
    outcome = course.run(*acts, check, lambda: ready(3), *ends, pause_s=0.1)
    assert outcome.kind == "done"
    assert "waiting for node002 (rank 3)" in course.view.words
    assert [session.kinds() for session in course.sessions] == [["order", "go"], ["order", "go"]]


class Refusing(Gate):
    """Lets nobody pass who said a word of ``trouble``; keeps what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[Any, ...]] = []

    asked = False

    def questions(self, all_met: bool, waited_s: float) -> dict[int, dict[str, Any]]:
        if self.asked:
            return {}
        self.asked = True
        return {1: {"kind": "look_deeper"}}

    def hear_rank(self, node: int, rank: int, facts: Mapping[str, Any]) -> None:
        self.heard.append((node, rank, facts))

    def hear_end(self, node: int, rank: int, why: str) -> None:
        self.heard.append((node, rank, why))

    def hear_look(self, node: int, frame: Mapping[str, Any]) -> bool:
        self.heard.append((node, frame["facts"]))
        return True

    def passes(self) -> bool:
        return not any("trouble" in str(entry) or "signal 11" in str(entry) for entry in self.heard)


def tell_torch(course: Course, rank: int, *kinds: str, **data: Any) -> None:
    for kind in kinds or ("rank_torch", "rank_ready"):
        course.sessions[rank // 2].say(kind="event", rank=rank, event={"kind": kind, "data": data}, time=1.0)


def test_ranks_whose_torch_is_refused_never_go(start: Callable[..., Course]) -> None:
    course = start(recipe=True)
    course.supervisor.gate = Refusing()
    course.supervisor.gate.asked = True
    outcome = course.run(
        *(lambda rank=rank: tell_torch(course, rank) for rank in (0, 1, 2)),
        lambda: tell_torch(course, 3, error="trouble"),
    )
    assert outcome.kind == "refused"
    assert [session.kinds() for session in course.sessions] == [["order", "stop"], ["order", "stop"]]
    rows = [json.loads(line) for line in (course.folder.path / "events.jsonl").read_text().splitlines()]
    assert [row["rank"] for row in rows if row["kind"] == "rank_ready"] == [0, 1, 2, 3]
    assert not any(row["kind"] == "rank_torch" for row in rows)


@pytest.mark.parametrize(("status", "kind"), [(-signal.SIGSEGV, "refused"), (1, "rank_failed")])
def test_a_rank_that_ends_before_it_is_ready_is_judged_too(
    start: Callable[..., Course], status: int, kind: str
) -> None:
    course = start(recipe=True)
    course.supervisor.gate = Refusing()
    outcome = course.run(lambda: tell_torch(course, 2, "rank_torch"), lambda: course.exit(2, status))
    assert outcome.kind == kind


def test_a_check_beside_a_script_stops_it(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch, LOOKS_SETTLE_S=0.1)
    course.supervisor.gate = Refusing()
    outcome = course.run(lambda: course.sessions[1].say(kind="looked", facts=[{"error": "trouble"}]))
    assert outcome.kind == "refused"
    assert course.sessions[0].kinds() == ["order", "stop"]


# ---- a port that somebody took


def test_a_port_taken_before_rank_0_came_to_it_is_worth_another_try(course: Course) -> None:
    assert course.run(lambda: course.exit(0, 1, TAKEN)).started_again


@pytest.mark.parametrize(
    ("rank", "tail", "before"),
    [
        (0, TAKEN.replace("29511", "6006"), []),  # a port of the script's own
        (0, "ValueError: 29511", []),
        (1, TAKEN, []),
        (0, TAKEN, ["joined"]),  # it had its port
        (0, TAKEN, ["metric"]),
    ],
)
def test_no_other_failure_starts_a_run_again(course: Course, rank: int, tail: str, before: list[str]) -> None:
    said = {
        "joined": lambda: course.sessions[0].say(kind="joined", ranks=[0]),
        "metric": lambda: course.sessions[0].say(
            kind="event", rank=0, time=1.0, event={"kind": "metric", "step": 1, "data": {}}
        ),
    }
    outcome = course.run(*(said[word] for word in before), lambda: course.exit(rank, 1, tail))
    assert (outcome.kind, outcome.started_again) == ("rank_failed", False)


def test_a_signal_is_no_reason_to_start_again(course: Course) -> None:
    course.on_stop = lambda session, message: [
        course.exit(rank, 1, TAKEN, stopping="asked") for rank in (2 * session.node, 2 * session.node + 1)
    ]
    outcome = course.run(lambda: course.signal(signal.SIGTERM))
    assert (outcome.kind, outcome.started_again) == ("stopped", False)


# ---- what ranks say


def test_logs_and_metrics_of_a_node_that_does_not_see_the_run_folder_come_to_the_head(
    start: Callable[..., Course],
) -> None:
    course = start(sees=(True, False))
    row = {"kind": "metric", "step": 1, "data": {"loss": 1.5}}
    answer = {"kind": "sample", "step": 1, "data": {"prompt": "海光?", "answer": "DCU"}}
    acts = [
        lambda: course.sessions[0].print(1, b"seen\n"),
        lambda: course.sessions[1].print(2, b"\xff un"),
        lambda: course.sessions[1].print(2, b"seen\n"),
        lambda: course.sessions[1].say(kind="event", rank=2, event=row, time=1.0),
        lambda: course.sessions[1].say(kind="event", rank=2, event=answer, time=1.0),
        lambda: course.sessions[1].say(
            kind="event", rank=2, event={"kind": "note", "data": {"message": "hm"}}, time=1.0
        ),
        lambda: course.sessions[1].say(
            kind="event", rank=2, event={"kind": "result", "data": {"adapter": "/x"}}, time=1.0
        ),
        *(lambda rank=rank: course.exit(rank, 0) for rank in range(4)),
    ]
    outcome = course.run(*acts)
    assert outcome.results == {"adapter": "/x"}
    assert course.view.output == [(1, b"seen\n"), (2, b"\xff un"), (2, b"seen\n")]
    assert (course.view.metrics, course.view.words) == ([(1, {"loss": 1.5})], ["hm"])
    files = {path.relative_to(course.folder.path).as_posix() for path in course.folder.path.rglob("*.log")}
    assert files == {"logs/node002/rank-00002.log"}
    assert (course.folder.path / "logs/node002/rank-00002.log").read_bytes() == b"\xff unseen\n"
    assert json.loads((course.folder.path / "metrics.jsonl").read_text()) == {"step": 1, "loss": 1.5}
    samples = (course.folder.path / "samples.jsonl").read_text(encoding="utf-8")
    assert samples == '{"step": 1, "prompt": "海光?", "answer": "DCU"}\n'
    orders = [session.sent[0] for session in course.sessions]
    assert [order["stream_all"] for order in orders] == [False, True]


def test_words_of_another_version_are_passed_over(course: Course) -> None:
    acts = [
        lambda: course.sessions[0].say(kind="of_the_future"),
        lambda: course.inbox.put(Arrival(0, b"piece of a file")),
    ]
    outcome = course.run(*acts, *(lambda rank=rank: course.exit(rank, 0) for rank in range(4)))
    assert outcome.kind == "done"
