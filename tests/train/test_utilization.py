"""How much of a card a step uses: counted by hand for a small model, and in a run's figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.base.config import from_dict
from launcher.train.utilization import Meter, Work, count_work, find_peak, make_meter, measure_products
from tests.train.tiny import Ran, Ranks, recipe

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]

#: of the tiny model: q and o [64, 64], k and v [64, 32], gate, up and down [64, 128]; head [64, 320]; 3 blocks
BLOCK, HEAD, WIDTH = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128, 64 * 320, 64
#: of r = 8 on q, k, v and o
ADAPTERS = 8 * (2 * (64 + 64) + 2 * (64 + 32))


def work_of(model_dir: Path, **sections: Any) -> Work:
    from transformers import AutoModelForCausalLM

    from launcher.train.methods import apply_method

    causal = AutoModelForCausalLM.from_pretrained(model_dir)
    apply_method(from_dict(recipe(model_dir, Path("rows"), **sections)), causal)
    return count_work(causal)


def test_work_counts_what_each_method_must_compute(model_dir: Path) -> None:
    full = work_of(model_dir, method="full")
    assert full == Work(6 * 3 * BLOCK, 6 * HEAD, 3 * 6 * WIDTH)
    lora = work_of(model_dir, method="lora")
    assert lora == Work(3 * (4 * BLOCK + 6 * ADAPTERS), 4 * HEAD, 3 * 6 * WIDTH)
    freeze = work_of(model_dir, method="freeze", freeze={"last_layers": 1})
    assert freeze == Work((2 + 2 + 6) * BLOCK, 4 * HEAD, (2 + 2 + 6) * WIDTH)


def test_modules_that_are_trained_whole_count_once(model_dir: Path) -> None:
    whole = work_of(model_dir, method="lora", lora={"modules_to_save": ["lm_head"]})
    assert whole.per_label == 6 * HEAD


def test_a_step_is_its_rows_labels_and_squares() -> None:
    assert Work(100.0, 10.0, 1.0).count([3, 4], 5) == 100 * 7 + 10 * 5 + 9 + 16
    meter = Meter(Work(1e12, 0.0, 0.0), 50.0, "a sheet", 2)
    assert meter.measure([10, 10], 3, step_s=0.4) == {"tflops": 25.0, "mfu": 0.5}
    assert meter.describe() == "MFU against 50 TFLOP/s a card: a sheet"
    assert Meter(meter.work, None, "", 2).measure([10, 10], 3, 0.4) == {"tflops": 25.0, "mfu": None}
    assert make_meter(None, True, (50.0, "a sheet"), 2).measure([1], 1, 1.0) == {"tflops": None, "mfu": None}


def test_the_peak_is_the_users_or_unknown_on_a_cpu() -> None:
    import torch

    device = torch.device("cpu")
    assert find_peak(99.0, device, torch.bfloat16) == (99.0, "train.peak_tflops")
    assert find_peak(None, device, torch.bfloat16) == (None, "")
    assert measure_products(device, torch.float32, size=64) > 0


def test_a_run_writes_both_figures_for_all_its_ranks(
    ranks: Ranks, lora: Ran, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    assert lora.metrics[0]["mfu"] is None
    assert lora.metrics[0]["facts"]["peak_tflops"] is None
    config = recipe(model_dir, rows_file, train={"max_steps": 2, "peak_tflops": 0.5})
    ran = ranks.train(config, tmp_path / "run", 2)
    work = work_of(model_dir, method="lora")
    assert ran.metrics[0]["facts"]["peak_tflops"] == 0.5
    for row in ran.metrics:
        # rows of about 100 tokens: their squares are a small part, known only to the run
        least = work.per_token * row["tokens"] + work.per_label * row["label_tokens"]
        most = least + work.per_square * row["tokens"] ** 2
        assert least / 2 / row["step_s"] / 1e12 < row["tflops"] < most / 2 / row["step_s"] / 1e12
        assert row["mfu"] == pytest.approx(row["tflops"] / 0.5)
    assert "note: MFU against 0.5 TFLOP/s a card: train.peak_tflops" in ran.outputs[0]
