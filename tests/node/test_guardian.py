"""What agents leave on record, and whom the next agent ends by it: nobody else's processes, ever."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.node import guardian, process_tree


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of this node."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path / f"dcu-launch-{os.getuid()}"


@pytest.fixture
def stray() -> Iterator[subprocess.Popen[bytes]]:
    """A process that somebody left."""
    with subprocess.Popen(
        ["sleep", "621"], env={"DCU_LAUNCH_TOKEN": "t" * 32}, start_new_session=True
    ) as process:
        deadline = time.monotonic() + 10
        while not Path(f"/proc/{process.pid}/comm").read_text().startswith("sleep"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
        process.kill()


def record(**changes: Any) -> dict[str, Any]:
    """A record of an agent and a guardian that are both gone."""
    return {"place": guardian._place(), "agent": [2**22 - 1, 1], "guardian": [2**22 - 2, 1], "token": "u" * 32, "known": [],
            **changes}  # fmt: skip


def write(folder: Path, data: Any) -> Path:
    assert guardian.record_folder() == str(folder)
    path = folder / "agent-1.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def identity(process: subprocess.Popen[bytes]) -> tuple[int, int]:
    return process.pid, process_tree.start_time(process.pid) or 0


def test_orphans_are_ended_by_pid_and_start_time(folder: Path, stray: subprocess.Popen[bytes]) -> None:
    path = write(folder, record(known=[identity(stray)]))
    assert guardian.end_orphans() == [stray.pid]
    assert stray.wait(5) == -9
    assert not path.exists()


def test_orphans_are_ended_by_the_runs_variable(folder: Path, stray: subprocess.Popen[bytes]) -> None:
    write(folder, record(token="t" * 32))
    assert guardian.end_orphans() == [stray.pid]
    assert stray.wait(5) == -9


@pytest.mark.parametrize("keeper", ["agent", "guardian"])
def test_a_run_that_still_has_a_keeper_is_left_alone(
    folder: Path, stray: subprocess.Popen[bytes], keeper: str
) -> None:
    own = (os.getpid(), process_tree.start_time(os.getpid()))
    path = write(folder, record(known=[identity(stray)], **{keeper: own}))
    assert guardian.end_orphans() == []
    assert stray.poll() is None
    assert path.exists()


@pytest.mark.parametrize("place", [["another boot", "pid:[1]"], ["", ""]])
def test_a_record_of_another_boot_or_container_means_nothing_here(
    folder: Path, stray: subprocess.Popen[bytes], place: list[str]
) -> None:
    write(folder, record(known=[identity(stray)], place=place))
    assert guardian.end_orphans() == []
    assert stray.poll() is None


def test_a_reused_pid_is_not_ended(folder: Path, stray: subprocess.Popen[bytes]) -> None:
    pid, started = identity(stray)
    path = write(folder, record(known=[[pid, started - 1]]))
    assert guardian.end_orphans() == []
    assert stray.poll() is None
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"place": 1}', "\0\0", "7"])
def test_a_record_that_cannot_be_read_is_passed_over(folder: Path, text: str) -> None:
    write(folder, text)
    assert guardian.end_orphans() == []


def test_a_folder_that_others_can_write_is_not_used(folder: Path) -> None:
    """Else another user of the node could name processes to be killed."""
    assert guardian.record_folder() == str(folder)
    folder.chmod(0o770)
    assert guardian.record_folder() is None
    assert guardian.end_orphans() == []
    folder.chmod(0o700)
    assert guardian.record_folder() == str(folder)
    folder.rmdir()
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")
    assert guardian.record_folder() is None
    guardian.Record(1, 2, "t" * 32).remove()


def test_a_record_is_written_whole_and_removed(folder: Path, stray: subprocess.Popen[bytes]) -> None:
    kept = guardian.Record(stray.pid, os.getpid(), "t" * 32)
    assert list(folder.iterdir()) == []
    kept.write({(8, 9), (6, 7)})
    (path,) = folder.iterdir()
    assert path.name == f"agent-{stray.pid}.json"
    data = json.loads(path.read_text())
    assert data == {"place": guardian._place(), "agent": list(identity(stray)), "token": "t" * 32, "known": [[6, 7], [8, 9]],
                    "guardian": [os.getpid(), process_tree.start_time(os.getpid())]}  # fmt: skip
    kept.remove()
    assert list(folder.iterdir()) == []
    kept.remove()


def test_an_agent_whose_guardian_was_killed_is_on_record_all_the_same(
    folder: Path, stray: subprocess.Popen[bytes]
) -> None:
    agent = os.fork()
    if agent == 0:
        guardian.announce_start(2**22 - 2, "t" * 32)
        os._exit(0)
    os.waitpid(agent, 0)
    kept = json.loads((folder / f"agent-{agent}.json").read_text())
    assert (kept["agent"][0], kept["guardian"], kept["token"]) == (agent, [0, 0], "t" * 32)
    assert guardian.end_orphans() == [stray.pid]
    assert list(folder.iterdir()) == []
