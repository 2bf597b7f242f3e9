"""What ``submit --follow`` makes of a job's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.commands.follow import _tell_end
from launcher.slurm.sbatch import JobState

COMPLETED = JobState("COMPLETED", "", 0, 0, "node001")


def test_a_job_that_ran_nothing_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As when a line of --before leaves the batch script with exit code 0."""
    assert _tell_end("7", COMPLETED, tmp_path / "run") == 1
    told = capsys.readouterr()
    assert f"job 7 is COMPLETED, but {tmp_path}/run holds no run that is done" in told.err
    assert told.out == ""


def test_a_job_whose_run_is_done_is_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text('{"exit": 0, "kind": "done"}')
    assert _tell_end("7", COMPLETED, tmp_path) == 0
    assert "job 7 is done" in capsys.readouterr().out
    assert _tell_end("7", JobState("FAILED", "", 7, 0, ""), tmp_path) == 7
