"""A folder that comes in pieces: whole or not there; what the node has of its own stays; others' folders are not touched."""

from __future__ import annotations

import os
import queue
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from launcher.launch.parcel import pack_folder
from launcher.node.folder_in import MARK, FolderReceiver, look, unpack


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "head" / "proj"
    for name in ("train.py", "pkg/m.py", "pkg/数据", "tool.sh"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name * 1000)
        os.utime(folder / name, (1000, 1000))
    (folder / "tool.sh").chmod(0o555)
    (folder / "link").symlink_to("pkg/m.py")
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "node" / "deep" / "proj"


def pack(source: Path) -> tuple[bytes, str]:
    with pack_folder(source) as parcel:
        return b"".join(parcel.pieces(1 << 20)), parcel.sha256


def bring(source: Path, target: Path, data: bytes | None = None, **changed) -> dict:
    """What the agent answers in the end."""
    whole, sha256 = pack(source)
    answers: queue.Queue[dict] = queue.Queue()
    data = whole if data is None else data
    message = {"target": str(target), "sha256": sha256, "size": len(data), "keep": ["runs"], **changed}
    receiver = FolderReceiver(message, answers.put)
    for at in range(0, len(data), 100):
        receiver.feed(data[at : at + 100])
    while (answer := answers.get(timeout=20))["kind"] == "taken":
        assert answer["bytes"] <= len(data)
    return answer


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def ask(target: Path, token: str = "t") -> dict:  # noqa: S107  no password
    return look({"target": str(target), "token_file": ".dcu-launch-x", "token": token})


def leftovers(target: Path) -> list[str]:
    return [name for name in os.listdir(target.parent) if name != target.name]


def test_folder_comes_whole(source: Path, target: Path):
    assert bring(source, target) == {"kind": "synced", "files": 5}
    assert names(target) == {"train.py", "pkg/m.py", "pkg/数据", "tool.sh", "link", MARK}
    assert (target / "pkg/m.py").read_text() == (source / "pkg/m.py").read_text()
    assert (target / "train.py").stat().st_mtime == 1000
    assert (target / "tool.sh").stat().st_mode & 0o777 == 0o755  # may be replaced and removed
    assert os.readlink(target / "link") == "pkg/m.py"
    assert leftovers(target) == []


def test_node_knows_what_it_has(source: Path, target: Path):
    assert ask(target) == {"kind": "sync_state", "sees": False, "has": ""}
    bring(source, target)
    assert ask(target)["has"] == pack(source)[1]
    (target / "train.py").write_text("changed by hand")
    assert ask(target)["has"] == ""
    bring(source, target)
    (target / "pkg/m.py").unlink()
    assert ask(target)["has"] == ""


def test_node_that_sees_the_heads_folder(source: Path):
    (source / ".dcu-launch-x").write_text("t")
    assert ask(source) == {"kind": "sync_state", "sees": True, "has": ""}
    assert ask(source, "another run's")["sees"] is False


def test_what_the_node_has_of_its_own_stays(source: Path, target: Path):
    bring(source, target)
    for own in ("runs/r1/log", "pkg/cache/x", "notes"):
        (target / own).parent.mkdir(parents=True, exist_ok=True)
        (target / own).write_text("own")
    (target / "pkg/__pycache__").mkdir()
    (target / "pkg/__pycache__/m.pyc").write_text("stale")
    (source / "pkg/m.py").write_text("new")
    (source / "train.py").unlink()
    bring(source, target)
    assert names(target) == {
        "pkg/m.py", "pkg/数据", "tool.sh", "link", MARK, "runs/r1/log", "pkg/cache/x", "notes"
    }  # fmt: skip
    assert (target / "pkg/m.py").read_text() == "new"
    assert leftovers(target) == []


def test_own_files_outlive_a_folder_that_the_head_dropped(source: Path, target: Path):
    bring(source, target)
    (target / "pkg/cache").mkdir()
    (target / "pkg/cache/x").write_text("own")
    for name in ("pkg/m.py", "pkg/数据"):
        (source / name).unlink()
    (source / "pkg").rmdir()
    bring(source, target)
    assert names(target) == {"train.py", "tool.sh", "link", MARK, "pkg/cache/x"}


def test_folders_of_others_are_not_touched(source: Path, target: Path):
    target.mkdir(parents=True)
    (target / "thesis.tex").write_text("years")
    answer = bring(source, target)
    assert answer["kind"] == "fault"
    assert answer["error"].startswith(f"--sync: {target}: exists and was not brought by --sync")
    assert names(target) == {"thesis.tex"}


@pytest.mark.parametrize("content", [[], ["runs/r1/log"]])
def test_empty_folders_and_run_folders_are_no_others(source: Path, target: Path, content):
    target.mkdir(parents=True)
    for name in content:
        (target / name).parent.mkdir(parents=True)
        (target / name).write_text("own")
    assert bring(source, target)["kind"] == "synced"
    assert set(content) <= names(target)


def test_link_or_file_in_its_place(source: Path, target: Path, tmp_path: Path):
    target.parent.mkdir(parents=True)
    target.symlink_to(tmp_path)
    assert "exists and is not a folder" in bring(source, target)["error"]
    target.unlink()
    target.write_text("")
    assert "exists and is not a folder" in bring(source, target)["error"]


@pytest.mark.parametrize("spoil", [lambda data: data[:-40], lambda data: data[:200] + b"x" + data[201:]])
def test_what_arrives_broken_changes_nothing(source: Path, target: Path, spoil):
    bring(source, target)
    before = names(target)
    data = spoil(pack(source)[0])
    (source / "train.py").write_text("new")
    answer = bring(source, target, data)
    assert answer["kind"] == "fault", answer
    assert names(target) == before
    assert (target / "train.py").read_text() == "train.py" * 1000
    assert leftovers(target) == []


def test_place_that_cannot_be_made(source: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    answer = bring(source, tmp_path / "file" / "proj")
    assert answer["kind"] == "fault"
    assert f"{tmp_path}/file" in answer["error"]


def test_member_outside_is_refused(tmp_path: Path):
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a/../../evil"))
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as archive, pytest.raises(ValueError, match="outside"):
        unpack(archive, str(tmp_path / "x"))


def killed(target: Path, end: str) -> Path:
    """A name that an agent of this host, which is gone, would have used."""
    return target.parent / f".{target.name}.dcu-launch-{os.uname().nodename}-4194305{end}"


def test_agent_killed_between_the_two_renames(source: Path, target: Path):
    bring(source, target)
    os.rename(target, killed(target, ".old"))
    killed(target, "").mkdir()
    ask(target)
    assert names(target) >= {"train.py"}
    assert leftovers(target) == []


def test_agent_killed_before_own_files_were_moved(source: Path, target: Path):
    bring(source, target)
    (target / "notes").write_text("own")
    os.rename(target, killed(target, ".old"))
    bring(source, target)
    ask(target)
    assert "notes" in names(target)
    assert leftovers(target) == []


def test_agent_that_is_at_work_is_left_alone(target: Path):
    target.mkdir(parents=True)
    busy = target.parent / f".{target.name}.dcu-launch-{os.uname().nodename}-{os.getpid()}"
    busy.mkdir()
    ask(target)
    assert busy.is_dir()
