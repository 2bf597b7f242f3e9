"""One tiny model for all training tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.train.tiny import ROOT, Ran, Ranks, make_rows, make_tokenizer, recipe


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model; made by a process of its own, where warnings are no errors."""
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, "-m", "tests.train.tiny", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="session")
def plain_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer that has no chat template."""
    folder = tmp_path_factory.mktemp("plain")
    make_tokenizer(folder, chat=False)
    return folder


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows for it."""
    file = tmp_path_factory.mktemp("rows") / "rows.json"
    file.write_text(json.dumps(make_rows()), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Starts ranks."""
    starter = Ranks()
    yield starter
    starter.close()


@pytest.fixture(scope="session")
def lora(ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A LoRA run over two ranks, done."""
    config = recipe(model_dir, rows_file, train={"max_steps": 3}, data={"eval_fraction": 0.2})
    return ranks.train(config, tmp_path_factory.mktemp("lora") / "run", 2)
