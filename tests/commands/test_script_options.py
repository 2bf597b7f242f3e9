"""Options that only scripts have: what they make of a plan, whom they are refused to, the warning about a local rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.base.errors import UsageError
from launcher.commands.run import run

USES_LOCAL_RANK = 'import argparse\np = argparse.ArgumentParser()\np.add_argument("--local_rank", type=int)\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "ranked.py").write_text(USES_LOCAL_RANK)
    (tmp_path / "dashed.py").write_text(USES_LOCAL_RANK.replace("local_rank", "local-rank"))
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    return tmp_path


def dry_run(*words: str):
    result = CliRunner().invoke(run, ["--dry-run", "--nproc", "2", *words], catch_exceptions=False)
    assert result.exit_code == 0
    # beside the plan in words, which is not of interest here
    told = [line for line in result.stderr.splitlines(keepends=True) if line.startswith("dcu-launch:")]
    return json.loads(result.stdout)["nodes"][0], "".join(told)


def test_deepspeed_reaches_the_ranks_and_never_the_cpu(folder: Path):
    node, _ = dry_run("--deepspeed", "ds.json", "train.py")
    assert {name: value for name, value in node["variables"].items() if name.startswith("ACC")} == {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(folder / "ds.json"),
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true",
    }
    assert "ACCELERATE_USE_CPU" in node["unset"]
    assert "ACCELERATE_USE_CPU" not in node["defaults"]


def test_accelerate_config_is_overruled_by_what_the_user_names(folder: Path):
    (folder / "a.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: bf16\n")
    node, _ = dry_run("--accelerate-config", "a.yaml", "--env", "ACCELERATE_MIXED_PRECISION=no", "train.py")
    values = [op["value"] for op in node["named"] if op["name"] == "ACCELERATE_MIXED_PRECISION"]
    assert values == ["bf16", "no"]


def test_what_a_file_says_in_vain_is_told(folder: Path):
    (folder / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    _, told = dry_run("--accelerate-config", "a.yaml", "train.py")
    assert "dcu-launch: note: a.yaml: not used: num_processes" in told


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("train.py", ["--local_rank=0"]),
        ("ranked.py", ["--local_rank=0"]),
        ("dashed.py", ["--local-rank=0"]),
    ],
)
def test_local_rank_is_appended_as_the_script_spells_it(script, arguments):
    node, told = dry_run("--local-rank-arg", script, "--lr", "1")
    assert node["ranks"][0]["arguments"] == arguments
    assert node["argv"][-3:] == [script, "--lr", "1"]
    assert told == ""


def test_script_with_such_an_option_gets_a_warning():
    node, told = dry_run("ranked.py")
    assert node["ranks"][0]["arguments"] == []
    assert told == (
        "dcu-launch: warning: ranked.py has an option --local_rank and is not given it; "
        "unless it reads LOCAL_RANK too, add --local-rank-arg before its name\n"
    )
    assert dry_run("ranked.py", "--local_rank=0")[1] == ""
    assert dry_run("train.py")[1] == ""


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--deepspeed", "ds.json"], "--deepspeed"),
        (["--accelerate-config", "a.yaml"], "--accelerate-config"),
        (["--local-rank-arg"], "--local-rank-arg"),
    ],
)
def test_recipes_say_it_otherwise(words, option):
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(run, ["--dry-run", *words], catch_exceptions=False)
    assert caught.value.message == f"{option} is for scripts and modules, and demo is a recipe"
    assert f"instead of {option}" in caught.value.hint
