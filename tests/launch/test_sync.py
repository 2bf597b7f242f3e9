"""Which nodes are sent a folder, and what happens when one cannot take it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from launcher.base.errors import NodeLostError, PreflightError, StoppedError, UsageError
from launcher.launch.parcel import pack_folder
from launcher.launch.sync import sync_folder
from launcher.remote.session import Arrival
from tests.launch.fake_nodes import FakeNodes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "proj" / "runs").mkdir(parents=True)
    (tmp_path / "proj" / "train.py").write_text("pass")
    return tmp_path / "proj"


class Cluster:
    """Nodes by what they answer to ``sync_look`` and ``sync_take``."""

    def __init__(self, folder: Path, states: list[dict], last: list[Arrival] | None = None) -> None:
        self.folder, self.states, self.last = folder, states, last
        self.tokens: list[str] = []
        self.told: list[str] = []
        self.nodes = FakeNodes([f"node{n:02}" for n in range(len(states))], self.reply)

    def reply(self, node: int, message: dict) -> list[Arrival]:
        if message["kind"] == "sync_look":
            self.tokens.append((self.folder / message["token_file"]).read_text())
            assert self.tokens[-1] == message["token"]
            return [Arrival(node, {"kind": "sync_state", "sees": False, "has": "", **self.states[node]})]
        if message["kind"] == "sync_take":
            if self.last is not None:
                return self.last
            taken = {"kind": "taken", "bytes": message["size"]}
            return [Arrival(node, taken), Arrival(node, {"kind": "synced", "files": 1})]
        return []

    def sync(self, target: str = "/there", run_dir: str = "/run") -> list[int]:
        return sync_folder(self.nodes, self.folder, target, run_dir, self.told.append)  # type: ignore[arg-type]

    @property
    def takers(self) -> list[int]:
        return [node for node, message in self.nodes.sent if message["kind"] == "sync_take"]


def test_nodes_that_see_the_folder_get_nothing(folder: Path):
    cluster = Cluster(folder, [{"sees": True}, {"sees": True}])
    assert cluster.sync() == []
    assert cluster.takers == []
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_blind_nodes_get_it_once(folder: Path):
    cluster = Cluster(folder, [{"sees": True}, {}, {}])
    assert cluster.sync() == [1, 2]
    orders = [message for _, message in cluster.nodes.sent if message["kind"] == "sync_take"]
    assert {order["target"] for order in orders} == {"/there"}
    assert cluster.told == [f"brought {folder} (1 files, 0.0 MiB packed) to node[01-02]"]


def test_a_node_that_has_the_same_files_gets_nothing(folder: Path):
    with pack_folder(folder) as parcel:
        sha256 = parcel.sha256
    cluster = Cluster(folder, [{"has": sha256}, {"has": "older"}])
    assert cluster.sync() == [1]


def test_run_folder_inside_is_not_brought(folder: Path):
    (folder / "out" / "run7").mkdir(parents=True)
    (folder / "out" / "run7" / "events.jsonl").write_text("x")
    cluster = Cluster(folder, [{}])
    cluster.sync(run_dir=str(folder / "out" / "run7"))
    (order,) = [message for _, message in cluster.nodes.sent if message["kind"] == "sync_take"]
    assert order["keep"] == ["runs", "out"]


def test_all_nodes_that_cannot_take_it_are_named(folder: Path):
    faults = [
        Arrival(node, {"kind": "fault", "error": "--sync: /there: No space left on device"})
        for node in (0, 1)
    ]
    cluster = Cluster(folder, [{}, {}], faults)
    with pytest.raises(PreflightError) as caught:
        cluster.sync()
    assert caught.value.message == (
        "node00: --sync: /there: No space left on device\nnode01: --sync: /there: No space left on device"
    )


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (Arrival(0, lost="no answer"), NodeLostError),
        (Arrival(-1, signal_number=signal.SIGTERM), StoppedError),
    ],
)
def test_an_end_in_the_middle(folder: Path, last, error):
    with pytest.raises(error):
        Cluster(folder, [{}], [last]).sync()


def test_folder_that_is_not_there(tmp_path: Path):
    with pytest.raises(UsageError, match="No such file"):
        Cluster(tmp_path / "nope", [{}]).sync()
