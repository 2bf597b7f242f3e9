"""The batch script: golden texts, what bash and shellcheck say of them, and quoting."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.base.errors import UsageError
from launcher.slurm.script import Job, write_script
from tests.golden import check_golden

GOLDEN = Path(__file__).parent / "golden"
LORA = Job(
    name="lora",
    nodes=2,
    launcher="/opt/dcu/bin/dcu-launch",
    words=("configs/lora.yaml", "model.path=/models/Qwen2.5-7B", "data.path=train.json"),
    workdir="/home/alice/work",
    run_dir="/home/alice/work/runs/20260301-101500-lora",
    files="/home/alice/work/runs/20260301-101500-lora.slurm",
    cards=4,
    cpus=32,
    options=(("partition", "dcu"), ("time", "12:00:00")),
)
JOBS = {
    "lora": LORA,
    "array": replace(
        LORA,
        words=("--bind", "numa", "configs/lora.yaml", "train.seed={task}", "data.path=part {task}.json"),
        options=(("array", "0-7%2"), ("dependency", "afterok:1234")),
        has_variables=True,
        has_named=True,
    ),
    "script": replace(
        LORA, words=("train.py", "--out", "it's here"), progress="/home/alice/work/check points", has_python=True
    ),
    "once": replace(LORA, words=("train.py", ""), restarts=0, before=(". /etc/profile", "module load python")),
    "no-signal": replace(LORA, name="a b;c", cards=0, cpus=None, save_before_s=0),
    "nasty": replace(
        LORA,
        workdir="/home/alice/My Work",
        run_dir="/home/alice/My Work/$(touch x)",
        words=("train.py", "a \"b\" $HOME 'c'", "line\nend", "数据", "{task}", "-n", "&", "*"),
        restarts=0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_the_text_is_as_it_was_kept(name: str) -> None:
    check_golden(GOLDEN / f"{name}.sh", write_script(JOBS[name]))


@pytest.mark.slurm
@pytest.mark.parametrize("name", JOBS)
def test_bash_and_shellcheck_have_nothing_to_say(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(write_script(JOBS[name]))
    for words in (["bash", "-n"], ["shellcheck", "--shell=bash", "--severity=style"]):
        done = subprocess.run([*words, str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_lines_for_sbatch_come_first_and_end_with_the_signal_to_the_batch_shell_alone() -> None:
    lines = write_script(LORA).split("\n")
    count = sum(line.startswith("#SBATCH") for line in lines)
    assert all(line.startswith("#SBATCH --") for line in lines[1 : count + 1])
    assert lines[count] == "#SBATCH --signal=B:USR1@300"
    assert "--export" not in write_script(LORA)


@pytest.mark.parametrize("value", ['a"b', "a\nb", "a\\b"])
def test_a_value_that_sbatch_could_not_read_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="cannot stand in a line for sbatch"):
        write_script(replace(LORA, name=value))


def test_words_arrive_as_they_were_given(tmp_path: Path) -> None:
    (tmp_path / "launch").write_text('#!/bin/bash\nprintf "%s\\0" "$@" >words\n')
    (tmp_path / "launch").chmod(0o755)
    words = JOBS["nasty"].words
    job = replace(
        JOBS["nasty"], launcher=str(tmp_path / "launch"), run_dir=str(tmp_path / "r $x"), save_before_s=0
    )
    done = subprocess.run(["bash", "-c", write_script(job)], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "words").read_text().split("\0")[:-1] == ["--run-dir", str(tmp_path / "r $x"), *words]


def test_each_task_of_an_array_has_its_words_and_its_run_folder(tmp_path: Path) -> None:
    (tmp_path / "launch").write_text('#!/bin/bash\nprintf "%s\\0" "$@" >words\n')
    (tmp_path / "launch").chmod(0o755)
    job = replace(
        JOBS["array"], launcher=str(tmp_path / "launch"), has_variables=False, has_named=False, restarts=0
    )
    env = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_JOB_ID": "7"}
    subprocess.run(["bash", "-c", write_script(job)], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "words").read_text().split("\0")[:-1] == [
        "--run-dir", f"{LORA.run_dir}-5", "--save-grace", "270", "--bind", "numa", "configs/lora.yaml",
        "train.seed=5", "data.path=part 5.json",
    ]  # fmt: skip
