"""Every run has a run folder of its own: in the same second, and against a run that is still there."""

import pytest

from launcher.base.errors import UsageError
from launcher.launch.run_folder import RunFolder, claim_folder


def test_runs_of_one_second_get_folders_of_their_own(tmp_path):
    wanted = tmp_path / "runs" / "20260101-000000-lora"
    names = [claim_folder(wanted).name for _ in range(3)]
    assert names == ["20260101-000000-lora", "20260101-000000-lora-2", "20260101-000000-lora-3"]


def test_a_folder_in_use_is_refused_and_free_again_at_the_end(tmp_path):
    first = RunFolder(tmp_path / "run", "run")
    with pytest.raises(UsageError, match="another run is using it"):
        RunFolder(tmp_path / "run", "run")
    first.close()
    RunFolder(tmp_path / "run", "run").close()


def test_a_folder_that_cannot_be_made_is_a_mistake_with_a_cure(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError) as caught:
        claim_folder(tmp_path / "runs" / "x")
    assert "--run-dir" in caught.value.hint
