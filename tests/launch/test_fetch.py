"""A result comes to the head whole or not at all, whatever happens on the way."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from pathlib import Path

import pytest

from launcher.base.errors import NodeLostError, StoppedError
from launcher.launch.fetch import FetchError, check_files, fetch_results
from launcher.remote.session import Arrival
from tests.launch.fake_nodes import FakeNodes

FILES = {"adapter.safetensors": b"w" * 1000, "sub/tokenizer.json": b"{}", "empty": b""}


def facts(data: bytes) -> dict:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def frames(files: dict[str, bytes], told: dict | None = None) -> list:
    out: list = []
    for name, data in files.items():
        out.append({"kind": "file", "name": name})
        out += [data[at : at + 300] for at in range(0, len(data), 300)]
    return [*out, {"kind": "fetched", "files": told or {name: facts(data) for name, data in files.items()}}]


def nodes(*coming, found: dict | None = None) -> FakeNodes:
    def reply(node: int, message: dict) -> list[Arrival]:
        if message["kind"] == "fetch_look":
            state = {
                "kind": "fetch_state",
                "found": {"adapter": 1002} if found is None else found,
                "checkpoints": ["step-1"],
            }
            return [Arrival(node, state)]
        if message["kind"] == "fetch":
            return [entry if isinstance(entry, Arrival) else Arrival(node, entry) for entry in coming]
        return []

    return FakeNodes(["node01"], reply)


def fetch(fake: FakeNodes, run_dir: Path):
    return fetch_results(fake, 0, run_dir, ("adapter", "model"), lambda text: None)  # type: ignore[arg-type]


def left(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


def test_result_lies_in_the_run_folder(tmp_path: Path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "old").touch()
    fake = nodes(*frames(FILES))
    fetched = fetch(fake, tmp_path)
    assert (fetched.names, fetched.failed, fetched.checkpoints) == (("adapter",), (), ("step-1",))
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()} == {
        f"adapter/{name}" for name in FILES
    }
    assert (tmp_path / "adapter" / "adapter.safetensors").read_bytes() == FILES["adapter.safetensors"]
    assert [message for _, message in fake.sent if message["kind"] == "taken"][-1]["bytes"] == 1002
    assert left(tmp_path) == ["adapter"]


def test_nothing_to_fetch(tmp_path: Path):
    fetched = fetch(nodes(found={}), tmp_path)
    assert (fetched.names, fetched.failed) == ((), ())


@pytest.mark.parametrize(
    ("coming", "why"),
    [
        (
            frames(FILES, {"adapter.safetensors": facts(b"other")}),
            "adapter.safetensors did not arrive as it was sent",
        ),
        (
            frames(FILES, {**{n: facts(d) for n, d in FILES.items()}, "lost": facts(b"")}),
            "lost did not arrive",
        ),
        ([{"kind": "fault", "error": "/run/adapter/x: Input/output error"}], "Input/output error"),
        (frames({"../evil": b"x"}), "outside the folder"),
        (frames({"manifest.json": b"{}"}), "manifest.json cannot be read"),
        (
            frames({"manifest.json": json.dumps({"files": {"a": facts(b"a")}}).encode()}),
            "a is not what manifest.json says",
        ),
        (
            frames({"a": b"b", "manifest.json": json.dumps({"files": {"a": facts(b"a")}}).encode()}),
            "a is not what manifest.json says",
        ),
    ],
)
def test_what_does_not_hold_stays_on_the_node(tmp_path: Path, coming, why):
    fetched = fetch(nodes(*coming), tmp_path)
    assert fetched.names == ()
    ((name, said),) = fetched.failed
    assert name == "adapter"
    assert why in said
    assert left(tmp_path) == []


def test_no_room_for_it(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10, 9, 1))
    fake = nodes(*frames(FILES))
    assert fetch(fake, tmp_path).failed == (("adapter", "there is no room for it here"),)
    assert [message["kind"] for _, message in fake.sent] == ["fetch_look"]


@pytest.mark.parametrize(
    ("last", "error"),
    [(Arrival(0, lost="no answer"), NodeLostError), (Arrival(-1, signal_number=signal.SIGINT), StoppedError)],
)
def test_an_end_in_the_middle_leaves_nothing_half(tmp_path: Path, last, error):
    with pytest.raises(error):
        fetch(nodes(*frames(FILES)[:3], last), tmp_path)
    assert left(tmp_path) == []


def test_without_a_manifest_the_nodes_word_decides(tmp_path: Path):
    received = {"a": facts(b"a")}
    check_files(received, {"a": facts(b"a")}, tmp_path / "manifest.json")
    with pytest.raises(FetchError, match="a did not arrive"):
        check_files(received, {"a": facts(b"b")}, tmp_path / "manifest.json")
