"""Variables arrive in the job as they were: through bash, and through the reader of env files."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from launcher.base.env_file import EnvOp, read_env_file
from launcher.base.errors import UsageError
from launcher.slurm.variables import write_env_file, write_variables

VALUES = ["shca_0:1,shca_1:1", 'it\'s "q" $x `y` $(z)', "l1\nl2\r\t\\n", "中文 blank ", "", "#x", "\\", "'"]


def test_named_values_come_back_whole(tmp_path: Path) -> None:
    ops = [EnvOp(f"V{number}", "set", value, "--env") for number, value in enumerate(VALUES)]
    ops += [EnvOp("PATH_LIKE", "prepend", "/a b:/c", "--env"), EnvOp("GONE", "unset", "", "--env")]
    path = tmp_path / "named.env"
    path.write_text(write_env_file(ops), newline="\n")
    problems: list[str] = []
    back = read_env_file(path, problems)
    assert problems == []
    assert [(op.name, op.operation, op.value) for op in back] == [
        (op.name, op.operation, op.value) for op in ops
    ]


def test_variables_sent_by_pattern_reach_the_batch_shell_and_no_others_do(tmp_path: Path) -> None:
    environ = {f"NCCL_V{number}": value for number, value in enumerate(VALUES)}
    others = {"HOME": "/x", "RANK": "3", "HIP_VISIBLE_DEVICES": "0", "SLURM_JOB_ID": "1", "SECRET": "s"}
    (tmp_path / "variables.sh").write_text(write_variables({**environ, **others}), newline="\n")
    done = subprocess.run(
        ["bash", "-c", ". ./variables.sh; env -0"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
    )
    found = dict(entry.split("=", 1) for entry in done.stdout.decode().split("\0") if entry)
    assert {name: value for name, value in found.items() if name.startswith("NCCL_")} == environ
    assert not others.keys() & found.keys()
    assert write_variables(others) == ""


def test_a_value_that_is_no_text_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="--env BYTES: the value is not UTF-8 text"):
        write_env_file([EnvOp("BYTES", "set", "\udcff", "--env")])
