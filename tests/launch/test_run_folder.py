"""The run folder: whole files, whole lines, and a full disk that costs files alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.errors import UsageError
from launcher.launch.run_folder import RunFolder, name_run


class Full:
    """A file on a full disk, which takes a few bytes more or none."""

    def __init__(self, file, takes: int) -> None:
        self.file = file
        self.takes = takes

    def write(self, data: bytes) -> int:
        self.file.write(data[: self.takes])
        if not self.takes:
            raise OSError(28, "No space left on device")
        return self.takes

    def close(self) -> None:
        self.file.close()


@pytest.mark.parametrize("takes", [0, 5])
def test_events_after_a_full_disk_are_whole_lines_again(tmp_path: Path, takes: int) -> None:
    folder = RunFolder(tmp_path / "run", "run")
    folder.add_event("start")
    real = folder._events
    folder._events = Full(real, takes)  # type: ignore[assignment]
    folder.add_event("note", data={"message": "lost"})
    assert folder.fault == "events.jsonl is not whole: No space left on device"
    folder._events = real
    folder.add_event("end", rank=3)
    folder.add_event("end", rank=4)
    folder.close()
    lines = (tmp_path / "run" / "events.jsonl").read_text().split("\n")
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    assert [(event["kind"], event.get("rank")) for event in whole] == [
        ("start", None),
        ("end", 3),
        ("end", 4),
    ]


def test_a_file_that_cannot_be_written_is_noted_and_the_first_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", "run")
    (tmp_path / "run" / "logs").write_text("in the way")
    folder.append("logs/node001/rank-00000.log", b"x")
    folder.write_json("no/such/folder.json", {})
    assert folder.fault == "logs/node001/rank-00000.log is not whole: Not a directory"
    folder.write_json("plan.json", {"a": 1})
    folder.close()
    assert json.loads((tmp_path / "run" / "plan.json").read_text()) == {"a": 1}
    assert sorted(path.name for path in (tmp_path / "run").glob("*.partial")) == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"run folder .*/file/run: Not a directory"):
        RunFolder(tmp_path / "file" / "run", "run")


def test_a_name_stays_in_the_folder_of_runs() -> None:
    with pytest.raises(UsageError, match="expected a name without /"):
        name_run("train.py", "../../x")
