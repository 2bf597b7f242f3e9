"""``dcu-launch submit`` where there is no Slurm, and with one that writes down what it is asked."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main

WORDS = ["--nodes", "2", "--cards", "4", "--partition", "dcu", "--time", "12:00:00"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, and no Slurm on PATH."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "cat", "sh"):
        (bare / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(bare))
    return tmp_path / "work"


@pytest.fixture
def sbatch(here: Path) -> Path:
    """A fake sbatch that keeps its arguments, and a fake scontrol."""
    log = here.parent / "asked"
    for name, body in (("sbatch", f'echo "$@" >{log}; echo "42;cluster"'), ("scontrol", "exit 1")):
        path = here.parent / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return log


def run_submit(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["submit", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def directives(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", text, re.MULTILINE))


def test_a_dry_run_needs_no_slurm_and_writes_nothing(here: Path, capsys: Any) -> None:
    code, out, err = run_submit(capsys, *WORDS, "--dry-run", "train.max_steps=3")
    assert (code, err) == (0, "")
    told = directives(out)
    assert {name: told[name] for name in ("nodes", "gres", "cpus-per-task", "partition", "time", "signal")} == {
        "nodes": "2", "gres": "dcu:4", "cpus-per-task": "32", "partition": "dcu", "time": "12:00:00",
        "signal": "B:USR1@300",
    }  # fmt: skip
    assert told["chdir"] == str(here)
    assert "train.max_steps=3 &" in out
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "job"),
    [([], "demo"), (["--name", "big"], "big"), (["--name", "big", "--job-name", "j"], "j")],
)
def test_a_job_is_called_by_the_name_of_its_run(here: Path, capsys: Any, words: list[str], job: str) -> None:
    code, text, err = run_submit(capsys, *WORDS, "--dry-run", *words)
    assert (code, directives(text)["job-name"]) == (0, job), err


def test_without_slurm_it_says_what_is_missing(here: Path, capsys: Any) -> None:
    code, _, err = run_submit(capsys, *WORDS)
    assert code == 2
    assert "sbatch and scontrol not found: Slurm's commands are not on PATH" in err
    assert "--dry-run prints the script without Slurm" in err
    assert list(here.iterdir()) == []


def test_a_mistake_in_the_recipe_is_told_before_anything_is_written(
    here: Path, sbatch: Path, capsys: Any
) -> None:
    code, _, err = run_submit(capsys, *WORDS, "train.max_stps=3")
    assert (code, "did you mean train.max_steps" in err) == (2, True)
    assert not sbatch.exists()
    assert list(here.iterdir()) == []


def test_values_go_by_files_that_only_the_user_can_read(
    here: Path, sbatch: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_IB_HCA", "shca_0:1,shca_1:1")
    code, out, err = run_submit(
        capsys, *WORDS, "--run-dir", "run", "--env", "MY_TOKEN=to'p,\"secret\"", "env.HF_TOKEN=also secret",
        "train.max_steps=3",
    )  # fmt: skip
    assert (code, err) == (0, "")
    files = here / "run.slurm"
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files.iterdir()} == {
        "job.sh": 0o700, "named.env": 0o600, "variables.sh": 0o600, "job.id": 0o644,
    }  # fmt: skip
    assert sbatch.read_text() == f"--parsable {files}/job.sh\n"
    script = (files / "job.sh").read_text()
    assert "secret" not in script
    assert "shca_0" not in script
    assert (files / "named.env").read_text() == "HF_TOKEN=$'also secret'\nMY_TOKEN=$'to\\'p,\"secret\"'\n"
    assert "export NCCL_IB_HCA=shca_0:1,shca_1:1\n" in (files / "variables.sh").read_text()
    assert "job 42 submitted: 2 nodes x 4 cards" in out
    assert f"run folder: {here}/run\n" in out
    assert f"follow it: tail -F {files}/out-42.txt" in out
    assert "stop it: scancel 42" in out


def test_options_of_a_run_go_along(capsys: Any) -> None:
    words = ["--bind", "numa", "--setup", "module:dtk/24.04", "--setup", "conda:x y", "--grace", "12.5", "-m"]
    code, out, _ = run_submit(capsys, *WORDS, "--dry-run", *words, "my.train", "--lr", "1e-4")
    assert code == 0
    launch = out[out.index("dcu-launch --run-dir") : out.index(" &\n")].replace("\\\n    ", "")
    assert launch == (
        "dcu-launch --run-dir \"$run\" --save-grace 270 -m --setup module:dtk/24.04 --setup 'conda:x y' --bind numa "
        "--grace 12.5 my.train --lr 1e-4"
    )


def test_a_script_is_started_again_only_where_its_checkpoints_are_known(here: Path, capsys: Any) -> None:
    (here / "train.py").touch()
    _, out, err = run_submit(capsys, *WORDS, "--dry-run", "train.py")
    assert "scontrol" not in out
    assert "--no-requeue" in out
    assert "note: after its time limit the job is not started again" in err
    _, out, err = run_submit(capsys, *WORDS, "--dry-run", "--checkpoints", "ckpt", "train.py")
    assert (f"checkpoints={here}/ckpt" in out, "scontrol requeue" in out, err) == (True, True, "")


def test_a_recipe_that_never_resumes_is_not_started_again(capsys: Any) -> None:
    _, out, err = run_submit(capsys, *WORDS, "--dry-run", "checkpoint.resume=never")
    assert ("scontrol" in out, "checkpoint.resume=never" in err) == (False, True)


def test_where_slurm_counts_no_cards_ranks_are_told(capsys: Any) -> None:
    _, out, _ = run_submit(capsys, *WORDS, "--dry-run", "--gres", "none", "--sbatch=--exclusive")
    told = directives(out)
    assert ("gres" in told, told["exclusive"], told["cpus-per-task"]) == (False, "", "32")
    assert "--nproc 4" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sbatch=--export=A=b"], "--env and --env-file"),
        (["--sbatch=--time=5"], "the save before the limit goes by it"),
        (["--sbatch=--signal=B:USR2@5"], "--save-before-limit"),
        (["--sbatch", "--wait now"], "expected a long option of sbatch"),
        (["--sbatch=-x"], "expected a long option of sbatch"),
        (["--before", "echo 'open"], "bash cannot read the batch script"),
        (["--run-dir", "/"], "run folder /: is no place for a run"),
        (["--run-dir", "own.txt"], "own.txt: is no folder"),
        (["--run-dir", ""], "is empty"),
        (["--array", ""], "is empty"),
        (["--time", "soon"], "not a time as Slurm writes it"),
        (["--time", "1", "--save-before-limit", "60"], "the whole job has 60 s"),
        (["--array", "0-3", "--follow"], "--follow follows one run"),
        (["--env", "RANK=1"], "set by the launcher for each rank"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], message: str, here: Path, capsys: Any) -> None:
    (here / "own.txt").touch()
    code, _, err = run_submit(capsys, "--dry-run", *words)
    assert (code, message in err) == (2, True), err


def test_a_refusal_of_slurms_is_passed_on_with_a_cure(here: Path, sbatch: Path, capsys: Any) -> None:
    (here.parent / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: CPU count per node can not be satisfied' >&2; exit 1\n"
    )
    code, _, err = run_submit(capsys, *WORDS)
    assert code == 2
    assert "sbatch refuses the job: CPU count per node can not be satisfied" in err
    assert "hint: nodes have fewer CPUs: --cpus-per-card" in err


def test_a_refused_job_leaves_no_values_behind(here: Path, sbatch: Path, capsys: Any) -> None:
    (here.parent / "bin" / "sbatch").write_text("#!/bin/sh\necho 'invalid partition' >&2; exit 1\n")
    assert run_submit(capsys, *WORDS, "--run-dir", "run", "--env", "HF_TOKEN=hunter2")[0] == 2
    assert list(here.rglob("*")) == []


def test_a_second_job_on_the_same_run_folder_waits_for_the_first(
    here: Path, sbatch: Path, capsys: Any
) -> None:
    words = [*WORDS, "--run-dir", "run", "--env"]
    assert run_submit(capsys, *words, "ODD=one")[0] == 0
    scontrol = here.parent / "bin" / "scontrol"
    scontrol.write_text("#!/bin/sh\necho JobId=42 JobState=PENDING ExitCode=0:0\n")
    code, _, err = run_submit(capsys, *words, "ODD=two")
    assert (code, "its job 42 is PENDING" in err) == (2, True), err
    assert "one" in (here / "run.slurm" / "named.env").read_text()
    scontrol.write_text("#!/bin/sh\necho JobId=42 JobState=COMPLETED ExitCode=0:0\n")
    assert run_submit(capsys, *words, "ODD=two")[0] == 0
    assert "two" in (here / "run.slurm" / "named.env").read_text()


def test_percent_signs_of_a_folder_are_no_numbers_of_jobs(here: Path, sbatch: Path, capsys: Any) -> None:
    code, text, said = run_submit(capsys, *WORDS, "--dry-run", "--run-dir", "100%j")
    assert directives(text)["output"] == f"{here}/100%%j.slurm/out-%j.txt"
    code, said, _ = run_submit(capsys, *WORDS, "--run-dir", "100%j")
    assert (code, f"tail -F {here}/100%j.slurm/out-42.txt" in said) == (0, True), said


def test_a_controller_that_does_not_answer_is_unreachable(here: Path, sbatch: Path, capsys: Any) -> None:
    (here.parent / "bin" / "sbatch").write_text(
        "#!/bin/sh\necho 'sbatch: error: Unable to contact slurm controller (connect failure)' >&2; exit 1\n"
    )
    assert run_submit(capsys, *WORDS)[0] == 4


def test_the_python_of_a_container(here: Path, sbatch: Path, capsys: Any) -> None:
    assert (
        run_submit(capsys, *WORDS, "--run-dir", "run", "--container", "apptainer exec --rocm dtk.sif")[0] == 0
    )
    assert (here / "run.slurm" / "python").read_text() == (
        '#!/bin/sh\nexec apptainer exec --rocm dtk.sif python3 "$@"\n'
    )
    assert os.access(here / "run.slurm" / "python", os.X_OK)
    assert '--python "$files/python"' in (here / "run.slurm" / "job.sh").read_text()


def test_options_behind_the_script_are_warned_of(here: Path, capsys: Any) -> None:
    (here / "own.py").write_text("pass\n")
    code, text, said = run_submit(capsys, "--dry-run", "own.py", "--nodes", "2", "--cards=4", "--lr", "1")
    assert code == 0
    assert directives(text)["nodes"] == "1"
    assert "dcu-launch: warning: --nodes, --cards behind own.py goes to the script" in said
