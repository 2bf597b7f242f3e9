"""A base is known again when it is copied or split otherwise, and told from one with other weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from launcher.train.base_mark import compare_marks, find_model_folder, mark_base

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]


def load(folder: Path) -> dict:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


@pytest.fixture
def copied(model_dir, tmp_path) -> Path:
    return Path(shutil.copytree(model_dir, tmp_path / "copied"))


def test_a_copy_that_is_split_into_two_files_is_the_same_base(model_dir, copied):
    from safetensors.torch import save_file

    tensors = load(copied)
    names = sorted(tensors)
    (copied / "model.safetensors").unlink()
    save_file({n: tensors[n] for n in names[::2]}, copied / "model-00001-of-00002.safetensors")
    save_file({n: tensors[n] for n in names[1::2]}, copied / "model-00002-of-00002.safetensors")
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "transformers_version": "9.9"}))
    trained, found = mark_base(str(model_dir), 0), mark_base(str(copied), 0)
    assert trained["shape"]["num_hidden_layers"] == 3
    assert compare_marks(trained, found) == []
    assert trained["weights"] == found["weights"]


def test_one_block_that_learnt_makes_another_base(model_dir, copied):
    from safetensors.torch import save_file

    tensors = load(copied)
    tensors["model.layers.2.mlp.up_proj.weight"] += 0.01
    save_file(tensors, copied / "model.safetensors")
    differences = compare_marks(mark_base(str(model_dir), 0), mark_base(str(copied), 0))
    assert differences == ["its weights are others"]


def test_shapes_and_other_values_of_the_config_are_told(model_dir, copied):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "rope_theta": 1e6}))
    trained = mark_base(str(model_dir), 0)
    assert compare_marks(trained, mark_base(str(copied), 0)) == ["config.json has other values"]
    (copied / "config.json").write_text(json.dumps({**config, "hidden_size": 32, "vocab_size": 9}))
    shapes = ["hidden_size 64 -> 32", "vocab_size 320 -> 9"]
    assert compare_marks(trained, mark_base(str(copied), 0)) == shapes


def test_pickled_weights_are_known_by_samples(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(bytes(range(256)) * 4096)
    before = mark_base(str(tmp_path), 0)
    data = bytearray(file.read_bytes())
    assert mark_base(str(tmp_path), 0) == before
    data[512 * 1024 + 7] ^= 1
    file.write_bytes(data)
    assert compare_marks(before, mark_base(str(tmp_path), 0)) == ["its weights are others"]


def test_the_demo_is_known_by_its_seed(model_dir):
    assert compare_marks(mark_base("demo", 1), mark_base("demo", 1)) == []
    assert compare_marks(mark_base("demo", 1), mark_base("demo", 2)) == [
        "the demo's model of seed 1 was trained on, this is the demo's model of seed 2"
    ]
    assert len(compare_marks(mark_base("demo", 1), mark_base(str(model_dir), 1))) == 1


def test_what_is_not_known_differs_from_nothing(tmp_path, model_dir):
    assert mark_base(str(tmp_path), 0) == {}
    assert mark_base("no/such", 0) == {}
    assert compare_marks({}, mark_base(str(model_dir), 0)) == []


def test_a_hub_name_is_looked_for_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--some--model"
    (repo / "snapshots" / "abc").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    assert find_model_folder("some/model") == repo / "snapshots" / "abc"
    assert find_model_folder("some/other") is None
