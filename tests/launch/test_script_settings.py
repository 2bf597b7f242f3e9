"""--deepspeed FILE: variables, paths on nodes, files that cannot be used; options for a local rank in scripts' texts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.base.env_file import EnvOp
from launcher.base.errors import ConfigError
from launcher.launch.script_settings import (
    ScriptSettings,
    add_deepspeed,
    find_local_rank_option,
    node_path,
    read_zero_stage,
)


@pytest.mark.parametrize(
    ("config", "zero3"),
    [
        ({"zero_optimization": {"stage": 3}}, "true"),
        ({"zero_optimization": {"stage": 2}}, "false"),
        ({"zero_optimization": {}}, "false"),
        ({}, "false"),
    ],
)
def test_variables_of_deepspeed(tmp_path: Path, monkeypatch, config, zero3):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text("\ufeff" + json.dumps(config), encoding="utf-8")
    settings = add_deepspeed(ScriptSettings(), "ds.json", "/project/on nodes")
    assert settings.variables == {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "/project/on nodes/ds.json",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": zero3,
    }
    assert settings.files == ("/project/on nodes/ds.json",)
    assert settings.uses_deepspeed


def test_path_on_nodes(monkeypatch):
    monkeypatch.setenv("HOME", "/home/alice")
    assert node_path("a/../ds.json", "/w") == "/w/ds.json"
    assert node_path("/abs/ds.json", "/w") == "/abs/ds.json"
    assert node_path("~/ds.json", "/w") == "/home/alice/ds.json"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{'a': 1}", "ds.json:1: not JSON"),
        (b'{"a": 1,\n}', "ds.json:2: not JSON"),
        (b"[1]", "expected an object"),
        (b'{"zero_optimization": {"stage": 4}}', "stage is 4, not 0 to 3"),
        (b'{"zero_optimization": {"stage": true}}', "stage is True, not 0 to 3"),
        (b'{"zero_optimization": {"stage": "auto"}}', "stage is 'auto'"),
        (b"\xff\xfe{", "not UTF-8"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text, said):
    (tmp_path / "ds.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"DeepSpeed configuration .*ds\.json") as caught:
        read_zero_stage(str(tmp_path / "ds.json"))
    assert said in caught.value.message


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nope\.json: No such file"):
        add_deepspeed(ScriptSettings(), str(tmp_path / "nope.json"), "/")


def test_settings_that_contradict_deepspeed(tmp_path: Path):
    path = tmp_path / "ds.json"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="both set DeepSpeed up"):
        add_deepspeed(ScriptSettings(uses_deepspeed=True), str(path), "/")
    on_cpu = ScriptSettings((EnvOp("ACCELERATE_USE_CPU", "set", "true", "a.yaml"),))
    with pytest.raises(ConfigError, match="use_cpu"):
        add_deepspeed(on_cpu, str(path), "/")


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ('parser.add_argument("--local_rank", type=int)', "--local_rank"),
        ("parser.add_argument('--local-rank', type=int)", "--local-rank"),
        ('p.add_argument(\n    "--local-rank",\n    "--local_rank",\n    default=-1)', "--local_rank"),
        ('p.add_argument("-l", "--local_rank")', "--local_rank"),
        ('local_rank = int(os.environ["LOCAL_RANK"])  # not --local_rank', None),
        ('p.add_argument("--local_rank_x")', None),
    ],
)
def test_option_for_the_local_rank_in_a_script(tmp_path: Path, text, option):
    (tmp_path / "train.py").write_text(text)
    assert find_local_rank_option(str(tmp_path / "train.py")) == option


def test_script_that_cannot_be_read_has_no_option(tmp_path: Path):
    assert find_local_rank_option(str(tmp_path / "nope.py")) is None
