"""Newer features of torch, with and without them."""

from __future__ import annotations

import ast

import pytest

from launcher.train.features import FEATURES, adamw_options, has_feature, major_minor
from tests.train.tiny import ROOT, recipe

pytestmark = pytest.mark.train


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.13.0+cpu", (2, 13)),
        ("2.1.0a0+git793d2b5.abi0.dtk2310", (2, 1)),
        ("2.4.1", (2, 4)),
        ("2.10.0rc1", (2, 10)),
    ],
)
def test_versions_compare_as_numbers(text, expected):
    assert major_minor(text) == expected


def test_versions_are_compared_in_one_place():
    """Elsewhere they are only told, or a part of a key."""
    sources = {
        file.name: file.read_text(encoding="utf-8") for file in (ROOT / "launcher" / "train").rglob("*.py")
    }
    assert "__version__) >= feature.first" in sources["features.py"]
    for name, text in sources.items():
        words = {
            node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            for node in ast.walk(ast.parse(text))
        }
        assert not words & {"Version", "LooseVersion", "parse_version", "is_torch_greater_or_equal"}, name
        compared = [ast.unparse(node) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Compare)]
        assert name == "features.py" or "__version__" not in " ".join(compared), name


def test_each_feature_says_what_is_done_without_it():
    listed = {feature.name: (feature.package, feature.first) for feature in FEATURES}
    assert listed == {
        "dtype_word": ("transformers", (4, 56)), "fused_adamw_cpu": ("torch", (2, 4)), "fused_rms_norm": ("torch", (2, 8)),
        "module_compile": ("torch", (2, 5)), "recompile_limit": ("torch", (2, 6)),
    }  # fmt: skip
    assert all(feature.fallback for feature in FEATURES)


def test_a_masked_feature_is_not_there(monkeypatch):
    import torch

    assert has_feature("fused_adamw_cpu")
    monkeypatch.setenv("DCU_LAUNCH_WITHOUT", "other,fused_adamw_cpu")
    assert not has_feature("fused_adamw_cpu")
    assert adamw_options(torch.device("cpu")) == {}


@pytest.mark.parametrize("feature", [feature.name for feature in FEATURES])
def test_training_goes_on_without_each_of_them(ranks, model_dir, rows_file, tmp_path, feature):
    config = recipe(model_dir, rows_file, train={"max_steps": 2})
    code = f"import os; os.environ['DCU_LAUNCH_WITHOUT'] = {feature!r}"
    without = ranks.train(config, tmp_path / "without", code=code)
    assert without.losses == pytest.approx(ranks.train(config, tmp_path / "with").losses, rel=1e-5)
