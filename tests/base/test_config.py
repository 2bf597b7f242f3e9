"""The schema: to JSON and back, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.config import (
    Recipe,
    describe_type,
    from_dict,
    leaf_types,
    to_dict,
)
from launcher.base.errors import ConfigError
from launcher.base.limits import CHOICES, LIMITS, find_wrong, flatten

ROOT = Path(__file__).resolve().parent.parent.parent
PATHS = {"model": {"path": "/m"}, "data": {"path": "/d"}}


def test_a_recipe_goes_through_json_unchanged():
    recipe = from_dict({**PATHS, "train": {"epochs": 2, "learning_rate": 1}, "env": {"A": "b"}})
    assert from_dict(json.loads(json.dumps(to_dict(recipe)))) == recipe
    assert recipe.train.learning_rate == 1.0
    assert isinstance(recipe.train.epochs, float)


def test_unknown_keys_and_wrong_types_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        from_dict({
            "model": {"path": 5, "pth": "x"}, "train": {"max_steps": True, "seed": "1"}, "lora": {"targets": ["a", 1]},
            "optim": {}, "freeze": 3,
        })  # fmt: skip
    assert sorted(caught.value.message.split("\n")) == [
        "freeze: expected a section of keys, found 3",
        "lora.targets: expected a list of names, found ['a', 1]",
        "model.path: expected text, found 5",
        "model.pth: unknown key",
        "optim: unknown key",
        "train.max_steps: expected a whole number, found True",
        "train.seed: expected a whole number, found '1'",
    ]


def test_tables_name_keys_of_the_schema():
    assert CHOICES.keys() | LIMITS.keys() <= leaf_types().keys()
    defaults = dict(flatten(to_dict(Recipe())))
    assert defaults.keys() == leaf_types().keys()


def test_defaults_are_valid_but_for_the_paths():
    assert find_wrong(to_dict(Recipe())) == [
        "model.path: not given; expected a model folder, or demo",
        "data.path: not given; expected a file or folder of rows, or demo",
    ]


def test_types_in_the_users_words():
    assert describe_type(leaf_types()["train.learning_rate"]) == "a number or null"
    assert describe_type(leaf_types()["data.eval_path"]) == "text or null"
    assert describe_type(leaf_types()["env"]) == "a mapping of NAME: value"


def test_the_schema_needs_the_standard_library_alone():
    code = (
        "import sys; before = set(sys.modules); import launcher.base.config; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - set(sys.stdlib_module_names) - {'launcher'}; "
        "sys.exit(str(new) if new else 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_reference_lists_every_key_with_its_default():
    lines = (ROOT / "docs" / "training.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip(" `") for cell in line.split("|")[1:3]] for line in lines if line.startswith("| `")]
    documented = {key: default for key, default in cells if key in leaf_types()}
    defaults = {
        key: json.dumps(value).strip('"') if value != "" else "-" for key, value in flatten(to_dict(Recipe()))
    }
    assert documented == defaults


def test_a_nul_character_is_refused_in_every_text():
    values = to_dict(Recipe())
    values["model"]["path"], values["data"]["path"] = "/models/a\0b", "rows\0.json"
    assert find_wrong(values) == ["model.path: holds a NUL character", "data.path: holds a NUL character"]
