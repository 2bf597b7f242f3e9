"""Only regular files are opened: what else may stand in a run folder must not make a command wait for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.base.regular_file import open_regular, read_text
from launcher.cli import main


def test_a_file_is_read_whatever_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xff one\n")
    with open_regular(tmp_path / "a") as file:
        assert file.read() == b"\xff one\n"
    assert read_text(tmp_path / "a") == "\ufffd one\n"
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")


def test_pipes_folders_and_devices_are_errors(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match="not a regular file"):
            open_regular(path)


@pytest.mark.parametrize("verb", [["report"], ["diagnose"], ["logs"], ["stop", "--no-wait"], ["attach"]])
def test_a_pipe_in_a_run_folder_keeps_no_command(
    verb: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    run = tmp_path / "run"
    run.mkdir()
    (run / "summary.json").write_text('{"exit": 0, "kind": "done"}')
    for name in ("metrics.jsonl", "events.jsonl", "plan.json"):
        os.mkfifo(run / name)
    assert main([*verb, "run"]) in (0, 2)
