"""The best checkpoint's adapter comes to the head while training goes on: whole or not at all, and nobody waits for it."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path

import pytest

from launcher.base.errors import NodeLostError, StoppedError
from launcher.launch.fetch_best import WINDOW_BYTES, BestFetch
from launcher.remote.session import Arrival
from tests.launch.fake_nodes import FakeNodes
from tests.launch.test_fetch import facts, frames
from tests.launch.test_supervise import Course, course, start  # noqa: F401  fixtures


def adapter(step: int) -> dict[str, bytes]:
    files = {"adapter_model.safetensors": b"%d" % step * 700, "tokenizer.json": b"{}"}
    manifest = {"step": step, "files": {name: facts(data) for name, data in files.items()}}
    return {**files, "manifest.json": json.dumps(manifest).encode()}


def told(step: int) -> dict:
    return {"path": f"/node/run/checkpoints/step-{step:08d}", "best": True, "adapter_bytes": 1500}


class Fetch:
    """A fetch from a node that answers when the test lets it."""

    def __init__(self, run_dir: Path) -> None:
        self.fake = FakeNodes(["node01"], lambda node, message: [])
        self.words: list[str] = []
        self.best = BestFetch(self.fake, run_dir, self.words.append)  # type: ignore[arg-type]
        self.checkpoints = run_dir / "checkpoints"

    def come(self, *frames) -> None:
        for frame in frames:
            assert self.best.take(Arrival(0, frame))

    def settle(self) -> None:
        """Until the thread is done that checks and moves."""
        deadline = time.monotonic() + 10
        while self.best._placing is not None:
            assert time.monotonic() < deadline
            self.best.tick()
            time.sleep(0.01)

    @property
    def asked(self) -> list[str]:
        return [message["folder"] for _, message in self.fake.sent if message["kind"] == "fetch"]

    @property
    def left(self) -> dict[str, bytes]:
        folder = self.checkpoints
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def lying(step: int) -> dict[str, bytes]:
    files = {f"step-{step:08d}/adapter/{name}": data for name, data in adapter(step).items()}
    return {**files, "best": b"step-%08d\n" % step}


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    return Fetch(tmp_path)


def test_a_better_one_takes_the_place_of_the_one_before(fetch: Fetch):
    fetch.best.hear(0, told(10))
    fetch.come(*frames(adapter(10)))
    fetch.settle()
    assert fetch.left == lying(10)
    fetch.best.hear(0, told(20))
    fetch.come(*frames(adapter(20))[:3])
    fetch.best.tick()
    assert fetch.left.items() >= lying(10).items()  # until the new one is there
    fetch.come(*frames(adapter(20))[3:])
    fetch.settle()
    assert fetch.left == lying(20)
    assert (fetch.best.here, fetch.words) == ("step-00000020", [])
    asked = [message for _, message in fetch.fake.sent if message["kind"] == "fetch"]
    assert [message["window"] for message in asked] == [WINDOW_BYTES] * 2
    assert fetch.asked[1] == str(fetch.checkpoints / "step-00000020" / "adapter")


def test_only_the_newest_of_those_that_wait_is_fetched(fetch: Fetch):
    for step in (10, 20, 30):
        fetch.best.hear(0, told(step))
    assert [Path(folder).parent.name for folder in fetch.asked] == ["step-00000010"]
    # it was pruned while it was sent: nothing to tell, a better one comes
    fetch.come(
        frames(adapter(10))[0], {"kind": "fault", "about": "fetch", "error": "No such file or directory"}
    )
    fetch.settle()
    assert [Path(folder).parent.name for folder in fetch.asked] == ["step-00000010", "step-00000030"]
    fetch.come(*frames(adapter(30)))
    fetch.settle()
    assert (fetch.left, fetch.words) == (lying(30), [])


def test_a_fault_is_a_line_and_leaves_what_was_there(fetch: Fetch):
    fetch.best.hear(0, told(10))
    fetch.come(*frames(adapter(10)))
    fetch.settle()
    for step, coming, why in (
        (
            20,
            [{"kind": "fault", "about": "fetch", "error": "x: Input/output error"}],
            "x: Input/output error",
        ),
        (
            30,
            frames({**adapter(30), "tokenizer.json": b"other"}),
            "tokenizer.json is not what manifest.json says",
        ),
        (50, frames({}), "it went while it was sent"),
        (40, frames(adapter(40), {"lost": facts(b"")}), "lost did not arrive as it was sent"),
    ):
        fetch.best.hear(0, told(step))
        fetch.come(*coming)
        fetch.settle()
        assert fetch.words.pop().startswith(f"the best adapter (step-{step:08d}) stays on node01: {why}")
        assert fetch.left == lying(10)


def test_without_room_nothing_is_asked_for(fetch: Fetch, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(2000, 501, 1499))
    fetch.best.hear(0, told(10))
    assert fetch.words == ["the best adapter (step-00000010) stays on node01: there is no room for it here"]
    assert (fetch.fake.sent, fetch.best.is_busy) == ([], False)


def test_what_is_not_best_or_no_adapter_is_left_alone(fetch: Fetch):
    fetch.best.hear(0, {"path": "/node/run/checkpoints/step-00000010"})
    fetch.best.hear(0, {**told(10), "adapter_bytes": 0})
    assert fetch.fake.sent == []
    for frame in ({"kind": "fault", "error": "rank"}, {"kind": "event"}, (0, b"output"), None):
        assert not fetch.best.take(Arrival(0, frame))
    assert not fetch.best.take(Arrival(-1, {"by": "the file STOP"}, signal_number=15))


def test_a_whole_checkpoint_of_another_run_is_not_touched(fetch: Fetch):
    whole = fetch.checkpoints / "step-00000010"
    whole.mkdir(parents=True)
    (whole / "manifest.json").write_text("{}")
    fetch.best.hear(0, told(10))
    fetch.come(*frames(adapter(10)))
    fetch.settle()
    assert "holds a checkpoint of another run" in fetch.words[0]
    assert fetch.left == {"step-00000010/manifest.json": b"{}"}


def test_what_a_killed_head_left_aside_does_not_keep_the_step_from_coming_again(fetch: Fetch):
    left = fetch.checkpoints / ".step-00000010.old" / "adapter"
    for _ in range(2):
        left.mkdir(parents=True)
        (left / "tokenizer.json").write_text("old")
        fetch.best.hear(0, told(10))
        fetch.come(*frames(adapter(10)))
        fetch.settle()
        assert (fetch.left, fetch.words) == (lying(10), [])


def test_given_up_in_the_middle_nothing_half_is_left(fetch: Fetch):
    fetch.best.hear(0, told(10))
    fetch.come(*frames(adapter(10))[:3])
    fetch.best.give_up()
    fetch.settle()
    fetch.come(*frames(adapter(10))[3:])  # what was under way
    fetch.best.hear(0, told(20))
    assert not fetch.best.is_busy
    assert fetch.left == {}
    assert list(fetch.checkpoints.glob(".*")) == []
    assert len(fetch.asked) == 1


@pytest.mark.parametrize(
    ("last", "error"),
    [(Arrival(0, lost="no answer"), NodeLostError), (Arrival(-1, signal_number=signal.SIGINT), StoppedError)],
)
def test_at_the_end_it_is_waited_for_and_an_end_in_the_middle_leaves_nothing_half(fetch: Fetch, last, error):
    fetch.best.hear(0, told(10))
    fetch.fake._coming += [Arrival(0, frame) for frame in frames(adapter(10))]
    fetch.best.hear(0, told(20))
    fetch.fake._reply = lambda node, message: [
        *([Arrival(0, frame) for frame in frames(adapter(20))[:3]] if message["kind"] == "fetch" else []),
        *([last] if message["kind"] == "fetch" else []),
    ]
    with pytest.raises(error):
        fetch.best.finish()
    assert fetch.left == lying(10)
    assert not list(fetch.checkpoints.glob(".*"))


def test_the_supervisor_hands_on_what_belongs_to_a_fetch_and_a_fault_of_it_ends_no_run(start, tmp_path):  # noqa: F811
    run: Course = start(recipe=True, sees=(False, True))
    best = BestFetch(run.nodes, run.folder.path, run.view.status)
    run.supervisor.best = best
    first = run.sessions[0]

    def event(step: int, rank: int = 0) -> None:
        first.say(
            kind="event", rank=rank, time=1.0, event={"kind": "checkpoint", "step": step, "data": told(step)}
        )

    def wait(word: str) -> None:
        deadline = time.monotonic() + 10
        while not any(word in line for line in (best.here, *run.view.words)):
            assert time.monotonic() < deadline, word
            time.sleep(0.02)

    def send(step: int) -> None:
        for frame in frames(adapter(step)):
            run.inbox.put(Arrival(0, frame))

    outcome = run.run(
        lambda: event(10),
        lambda: send(10),
        lambda: wait("step-00000010"),
        lambda: event(20),
        lambda: first.say(kind="fault", about="fetch", error="gone"),
        lambda: wait("the best adapter (step-00000020) stays on node001: gone"),
        *(lambda rank=rank: run.exit(rank, 0) for rank in range(4)),
    )
    assert (outcome.kind, outcome.failures, outcome.saved_step) == ("done", (), 20)
    assert (run.folder.path / "checkpoints" / "best").read_text() == "step-00000010\n"


def test_a_stop_gives_up_what_is_on_its_way(start):  # noqa: F811
    run: Course = start(recipe=True, sees=(False, True))
    best = run.supervisor.best = BestFetch(run.nodes, run.folder.path, run.view.status)
    outcome = run.run(
        lambda: run.sessions[0].say(
            kind="event", rank=0, time=1.0, event={"kind": "checkpoint", "step": 10, "data": told(10)}
        ),
        lambda: [run.inbox.put(Arrival(0, frame)) for frame in frames(adapter(10))[:3]],
        lambda: run.signal(signal.SIGTERM),
        pause_s=0.2,
    )
    best.finish()
    assert outcome.kind == "stopped"
    assert [p for p in (run.folder.path / "checkpoints").rglob("*") if p.is_file()] == []
