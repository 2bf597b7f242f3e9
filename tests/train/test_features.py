"""Newer features of torch, with and without them."""

from __future__ import annotations

import pytest

from launcher.train.features import FEATURES, adamw_options, has_feature, torch_version
from tests.train.tiny import recipe

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
    assert torch_version(text) == expected


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
