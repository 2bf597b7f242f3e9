"""Recipes as people write them, merged and checked as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.base.config import config_hash, from_dict
from launcher.base.errors import ConfigError
from launcher.base.recipe import load_recipe, suggest

ROOT = Path(__file__).resolve().parent.parent.parent
GIVEN = ["model.path=/m", "data.path=/d.json"]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write_file(text: str | bytes) -> Path:
        file = tmp_path / "recipe.yaml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    return write_file


def problems(path: Path | None, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, overrides)
    assert caught.value.exit_code == 2
    return [line.replace(f"{path}:", "") for line in caught.value.message.split("\n")]


def test_shipped_recipes_load_and_open_with_their_command():
    files = sorted((ROOT / "configs").rglob("*.yaml"))
    assert [file.stem for file in files] == [
        "freeze", "full", "llama-3.1-8b", "lora", "qwen2.5-7b", "smoke", "zero2", "zero3",
    ]  # fmt: skip
    for file in files:
        first = file.read_text().splitlines()[0].split()
        assert first[:4] == ["#", "dcu-launch", "--hosts", "hostfile"]
        assert first[4] == f"configs/{file.name}"
        recipe = from_dict(load_recipe(file, first[5:]))
        whole = {"freeze": "freeze", "full": "full", "zero2": "full", "zero3": "full"}
        assert recipe.method == whole.get(file.stem, "lora")
        stage = {"zero2": 2, "zero3": 3}.get(file.stem)
        assert recipe.engine == ("deepspeed" if stage else "ddp")
        assert recipe.deepspeed.zero_stage == (stage or 2)


def test_the_demo_needs_no_file():
    recipe = load_recipe(None, [])
    assert recipe == load_recipe("demo", [])
    assert (recipe["model"]["path"], recipe["data"]["path"], recipe["train"]["max_steps"]) == (
        "demo",
        "demo",
        20,
    )
    assert load_recipe(None, ["train.max_steps=5"])["train"]["max_steps"] == 5


def test_a_file_then_overrides(write):
    file = write(
        "model: {path: /m}\ndata:\n  path: /d.json\ntrain:\n  max_steps: 10\n  learning_rate: 1e-4\n"
    )
    recipe = load_recipe(
        file, ["train.max_steps=20", "lora.targets=[q_proj,v_proj]", "data.eval_path=/e.json"]
    )
    assert recipe["train"]["max_steps"] == 20
    assert recipe["train"]["learning_rate"] == 1e-4
    assert recipe["lora"]["targets"] == ["q_proj", "v_proj"]
    assert recipe["data"]["eval_path"] == "/e.json"
    assert load_recipe(file, ["data.eval_path=null"])["data"]["eval_path"] is None


def test_bom_crlf_and_chinese(write):
    file = write("\ufeff# 微调\r\nmodel:\r\n  path: /模型/七\r\ndata:\r\n  path: /数据.json # 行\r\n")
    recipe = load_recipe(file, [])
    assert (recipe["model"]["path"], recipe["data"]["path"]) == ("/模型/七", "/数据.json")


def test_an_empty_section_and_an_empty_file_are_defaults(write):
    assert load_recipe(write("train:\nlora:\n"), GIVEN) == load_recipe(write(""), GIVEN)


def test_all_mistakes_are_told_at_once_with_their_lines(write):
    file = write(
        "model:\n  path: /m\n  trust: yes\noptim:\n  lr: 1\ntrain:\n  max_stepz: 3\n  seed: 1.5\n  epochs: true\n"
        "  precision: bf61\nlora: 5\ndata:\n  packing: [1]\n"
    )
    assert problems(file, "train.max_step=3", "max_steps=5", "nonsense", "train.warmup_ratio=much") == [
        "nonsense: expected key=value, as in train.max_steps=10",
        "3: model.trust: unknown key",
        "4: optim: unknown key",
        "7: train.max_stepz: unknown key; did you mean train.max_steps?",
        "11: lora: expected a section of keys, as in lora.r",
        "train.max_step=3: unknown key; did you mean train.max_steps?",
        "max_steps=5: unknown key; did you mean train.max_steps?",
        "8: train.seed: expected a whole number; found 1.5",
        "9: train.epochs: expected a number; found True",
        "13: data.packing: expected true or false; found a list",
        "train.warmup_ratio=much: expected a number; found 'much'",
        "10: train.precision: expected one of auto, bf16, fp16, fp32; found 'bf61'",
    ]


def test_unknown_keys_and_wrong_values_are_told_together(write):
    """What only follows from another mistake is not told: a length beside a limit that is no number, a path misspelt."""
    file = write(
        "method: qlora\ntrain:\n  lr: 1\n  warmup_ratio: 2\n  seed: x\n  max_tokens_per_card: 1024\n"
        "  global_batch_size: ${nowhere}\ndata:\n  pth: /d\n  max_length: long\nmodel:\n  path: ''\n"
    )
    assert problems(file, "lora.r=-1", "optim=5") == [
        "3: train.lr: unknown key; did you mean train.learning_rate?",
        "9: data.pth: unknown key; did you mean data.path?",
        "optim=5: unknown key",
        "5: train.seed: expected a whole number; found 'x'",
        "10: data.max_length: expected a whole number; found 'long'",
        "7: train.global_batch_size: Interpolation key 'nowhere' not found; ${train.seed} is another key, "
        "${oc.env:NAME} a variable of this machine; in env, NAME+: value prepends on the node",
        "1: method: expected one of lora, freeze, full; found 'qlora'",
        "lora.r: expected 1 to 4096; found -1",
        "4: train.warmup_ratio: expected 0 to 1; found 2.0",
        "12: model.path: not given; expected a model folder, or demo",
    ]


def test_wrong_values_are_told_at_once_with_their_lines(write):
    file = write(
        "method: qlora\ntrain:\n  global_batch_size: 0\n  warmup_ratio: 2\ndata:\n  max_length: 4096\n"
    )
    assert problems(file, "train.max_tokens_per_card=1024", "lora.r=-1", "model.path=/m") == [
        "1: method: expected one of lora, freeze, full; found 'qlora'",
        "lora.r: expected 1 to 4096; found -1",
        "3: train.global_batch_size: expected at least 1; found 0",
        "4: train.warmup_ratio: expected 0 to 1; found 2.0",
        "data.path: not given; expected a file or folder of rows, or demo",
        "train.max_tokens_per_card: expected at least data.max_length (4096); found 1024",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\n  b: 2\n", "2: mapping values are not allowed here"),
        ("method: lora\nmethod: full\n", "2: found duplicate key"),
        ("- a\n- b\n", "expected keys and values"),
        ("train: [\n", "2: expected the node content"),
    ],
)
def test_text_that_is_no_recipe(write, text, message):
    assert message in problems(write(text))[0]


def test_text_in_gbk_is_named_with_its_cure(write):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(b"method: lora\n# " + "微调".encode("gbk")), [])
    assert caught.value.message.endswith("recipe.yaml:2: not UTF-8 text")
    assert "iconv" in caught.value.hint


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_of_windows_is_named_with_its_cure(write, encoding):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write("method: lora\n# 微调\n".encode(encoding)), [])
    assert caught.value.message.endswith("recipe.yaml:1: not UTF-8 text")
    assert caught.value.hint == "a file in UTF-16: iconv -f UTF-16 -t UTF-8 OLD > NEW"


@pytest.mark.parametrize(
    ("text", "line"),
    [("train:\n\tseed: 3\n", 2), ("train:\n  seed: 1\n\tepochs: 1\n", 3), ("\tseed: 1\n", 1)],
)
def test_a_tab_is_named_with_its_cure(write, text, line):
    with pytest.raises(ConfigError) as caught:
        load_recipe(write(text), [])
    assert f"recipe.yaml:{line}: found character '\\t'" in caught.value.message
    assert caught.value.hint == "YAML takes blanks where this has a tab: expand -t 2 OLD > NEW"


def test_a_missing_file_names_its_neighbours():
    with pytest.raises(ConfigError) as caught:
        load_recipe(ROOT / "configs" / "lorra.yaml", [])
    assert "no such recipe" in caught.value.message
    assert "lora.yaml" in caught.value.hint


def test_values_of_texts_are_taken_as_written(write):
    file = write(
        "model:\n  path: 010\ndata:\n  path: '/a b'\nenv:\n  A: 0x10\n  B: on\n  C: 1e3\n  D: null\n"
    )
    recipe = load_recipe(file, ["env.E=a=b #c", "env.PATH+=/x", "data.eval_path=/d: [x]"])
    assert recipe["model"]["path"] == "010"
    assert recipe["data"] | {"path": "/a b", "eval_path": "/d: [x]"} == recipe["data"]
    assert recipe["env"] == {"A": "0x10", "B": "on", "C": "1e3", "D": None, "E": "a=b #c", "PATH+": "/x"}


def test_setup_scripts_are_a_list(write):
    assert load_recipe(write("env:\n  setup: /opt/a.sh\n"), GIVEN)["env"] == {"setup": ["/opt/a.sh"]}
    assert load_recipe(write("env: {setup: [a, b]}\n"), GIVEN)["env"] == {"setup": ["a", "b"]}
    assert load_recipe(None, ["env.setup=a,b"])["env"] == {"setup": ["a", "b"]}


def test_keys_may_refer_to_keys_and_variables(write, monkeypatch):
    monkeypatch.setenv("MODELS", "/models")
    file = write(
        "model: {path: '${oc.env:MODELS}/x'}\ntrain: {save_every: '${train.eval_every}', eval_every: 7}\n"
    )
    recipe = load_recipe(file, ["data.path=${model.path}/rows.json"])
    assert recipe["model"]["path"] == "/models/x"
    assert recipe["data"]["path"] == "/models/x/rows.json"
    assert recipe["train"]["save_every"] == 7


def test_a_variable_in_shell_style_is_refused_with_the_cure(write):
    found = problems(write("env:\n  LD_LIBRARY_PATH: /x:${LD_LIBRARY_PATH}\n"), *GIVEN)
    assert found[0].startswith("2: env.LD_LIBRARY_PATH: Interpolation key 'LD_LIBRARY_PATH' not found")
    assert "NAME+: value prepends on the node" in found[0]


def test_nothing_in_a_recipe_is_imported(write):
    file = write(
        "model:\n  _component_: os.system\n  path: !!python/object/apply:os.system ['touch pwned']\n"
    )
    assert "could not determine a constructor" in problems(file)[0]
    assert problems(write("model:\n  _component_: os.system\n"), *GIVEN) == [
        "2: model._component_: unknown key"
    ]


def test_paths_that_are_here_become_absolute_others_stay(tmp_path, monkeypatch):
    (tmp_path / "rows.json").write_text("[]")
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(None, ["data.path=rows.json", "model.path=Qwen/Qwen2.5-0.5B"])
    assert recipe["data"]["path"] == str(tmp_path / "rows.json")
    assert recipe["model"]["path"] == "Qwen/Qwen2.5-0.5B"
    assert load_recipe(None, [])["data"]["path"] == "demo"
    (tmp_path / "demo").mkdir()
    assert load_recipe(None, [])["data"]["path"] == "demo"


def test_home_is_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "m").mkdir()
    assert load_recipe(None, ["model.path=~/m"])["model"]["path"] == str(tmp_path / "m")


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr", "train.learning_rate"),
        ("train.learnig_rate", "train.learning_rate"),
        ("lora.rank", "lora.r"),
        ("data.cutoff_len", "data.max_length"),
        ("model_name_or_path", "model.path"),
        ("learning_rate", "train.learning_rate"),
        ("zebra", ""),
    ],
)
def test_suggestions(word, key):
    from launcher.base.config import leaf_types

    assert suggest(word, leaf_types()) == key


def test_the_hash_is_of_the_content_and_not_of_the_order():
    recipe = load_recipe(None, [])
    assert config_hash(recipe) == config_hash(dict(reversed(list(recipe.items()))))
    assert config_hash(recipe) != config_hash(load_recipe(None, ["train.seed=1"]))


def test_omegaconf_is_imported_only_when_a_recipe_is_read():
    code = "import sys, launcher.base.recipe; sys.exit('omegaconf' in sys.modules or 'yaml' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), check=False).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model: &m {path: demo}\ndata:\n  max_length: 100\n  <<: *m\n", "r.yaml:4: << is not supported"),
        ("env: [A, B]\n", "r.yaml:1: env: expected NAME: value pairs; found a list"),
        ("env: {setup: [1, x]}\n", "r.yaml:1: env.setup: expected a list of set-up steps"),
        (
            "train:\n  max_steps: abc\n  epochs: [1]\n",
            "r.yaml:3: train.epochs: expected a number; found a list",
        ),
        ('model: {path: "${"}\n', "r.yaml: cannot be read as a recipe: "),
        ("train: {null: 4}\n", "r.yaml: cannot be read as a recipe: "),
        ("lora: {targets: !!set {a, b}}\n", "r.yaml: cannot be read as a recipe: "),
        ("a: " + "[" * 3000, "r.yaml: cannot be read as a recipe: "),
    ],
)
def test_what_yaml_can_hold_and_a_recipe_cannot(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_recipe(tmp_path / "r.yaml")
    assert f"{tmp_path}/{said}" in raised.value.message
    assert len(raised.value.message) < 1000
