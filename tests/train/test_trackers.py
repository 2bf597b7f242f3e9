"""Trackers: what they get, those that cannot be, and that none of them stops or holds up a run."""

from __future__ import annotations

import importlib.util
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.base.config import from_dict
from launcher.base.errors import ConfigError
from launcher.train.trackers import describe_recipe, hide_secrets, pick_figures, pick_trackers, set_offline
from tests.train.tiny import Ranks, recipe

pytestmark = pytest.mark.train

#: puts a tracker of this test's own among those that Accelerate knows, in a rank that is about to train
OWN = """
import time
from accelerate import tracking

class Own(tracking.GeneralTracker):
    name, requires_logging_directory = "own", False

    def __init__(self, run_name, **kwargs):
        super().__init__()
        self.steps = []

    tracker = property(lambda self: None)

    def start(self):
        {start}

    def store_init_configuration(self, values):
        print("own config", sorted(values)[:2], values["data.max_length"], "env" in values, flush=True)

    def log(self, values, step=None, **kwargs):
        {log}
        print("own log", step, sorted(values)[:2], flush=True)

    def finish(self):
        print("own finish", flush=True)

tracking.LOGGER_TYPE_TO_CLASS["own"] = Own
tracking._available_trackers.append("own")
from launcher.train import job
job.END_S = job.EARLY_END_S = {end_s}
"""


def own(start: str = "pass", log: str = "pass", end_s: float = 30) -> str:
    return OWN.format(start=start, log=log, end_s=end_s)


def read_events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each figure in a folder of TensorBoard's, read by TensorBoard itself."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@pytest.mark.skipif(
    not importlib.util.find_spec("tensorboard") and not os.environ.get("CI"),
    reason="without tensorboard, which make setup installs",
)
def test_tensorboard_shows_the_figures_of_metrics_jsonl_also_after_a_resume(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "data": {"eval_fraction": 0.2},
        "train": {"max_steps": 4, "save_every": 2, "eval_every": 2},
    }
    ran = ranks.train(recipe(model_dir, rows_file, **changes), tmp_path / "run", 2)
    changes["train"]["max_steps"] = 6
    changes["checkpoint"] = {"resume": str(tmp_path / "run" / "checkpoints" / "step-00000002")}
    ran = ranks.train(recipe(model_dir, rows_file, **changes), tmp_path / "run", 1)
    shown = read_events(tmp_path / "run" / "tensorboard")
    for key in ("loss", "lr", "grad_norm", "tokens_per_s", "data_wait_s", "slowest_step_s"):
        assert [step for step, _ in shown[key]] == [1, 2, 3, 4, 5, 6]
        assert [value for _, value in shown[key]] == pytest.approx(
            [row[key] for row in ran.metrics], rel=1e-6
        )
    assert [step for step, _ in shown["eval_loss"]] == [2, 4, 6]
    assert "time" not in shown
    assert "facts" not in shown


def test_a_tracker_gets_the_recipe_and_every_step_on_rank_0_alone(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    config = recipe(model_dir, rows_file, train={"max_steps": 3, "trackers": ["own"]})
    config["env"] = {"HF_TOKEN": "hf_secret"}
    ran = ranks.train(config, tmp_path / "run", 2, code=own())
    lines = [line for line in ran.outputs[0].splitlines() if line.startswith("own")]
    assert lines == [
        "own config ['checkpoint.keep', 'checkpoint.resume'] 1024 False",
        *(f"own log {step} ['data_wait_s', 'epoch']" for step in (1, 2, 3)),
        "own finish",
    ]
    assert "own" not in ran.outputs[1]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"start": "raise OSError('no route to host')"}, "tracker own: OSError: no route to host; training goes on"),
        ({"log": "if step == 2: raise SystemExit('bye')"}, "tracker own: SystemExit: bye; training goes on"),
    ],
)  # fmt: skip
def test_a_tracker_that_fails_is_warned_of_and_training_ends_well(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path, where: dict[str, str], message: str
) -> None:
    config = recipe(model_dir, rows_file, train={"max_steps": 3, "trackers": ["own"]})
    ran = ranks.train(config, tmp_path / "run", code=own(**where))
    assert ran.outputs[0].count(f"warning: {message}") == 1
    assert len(ran.metrics) == 3
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").exists()


def test_a_tracker_that_hangs_holds_up_neither_steps_nor_the_end(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    # what a library does at the end of Python may hang as well
    code = own(start="import atexit; atexit.register(time.sleep, 600); time.sleep(600)", end_s=1.5)
    started = time.monotonic()
    ran = ranks.train(
        recipe(model_dir, rows_file, train={"max_steps": 3, "trackers": ["own"]}), tmp_path / "run", code=code
    )
    assert time.monotonic() - started < 60
    assert "warning: tracker own: not done 1.5 s after the last step; left" in ran.outputs[0]
    assert len(ran.metrics) == 3


def test_trackers_that_cannot_be_are_told_before_training_by_one_rank(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    config = recipe(model_dir, rows_file, train={"trackers": ["aim", "wandbb"]})
    ran = ranks.end(config, tmp_path / "run", 2)
    assert ran.codes == [2, 2]
    assert "error: train.trackers: aim is not installed where rank 0 runs" in ran.outputs[0]
    assert "error: train.trackers: Accelerate knows no tracker 'wandbb'; it knows aim, " in ran.outputs[0]
    assert "hint: pip install it there, or leave it out: train.trackers=[] tells none" in ran.outputs[0]
    assert "train.trackers" not in ran.outputs[1]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_no_trackers_are_taken_where_none_are_wanted() -> None:
    assert pick_trackers([]) == ()
    has_tensorboard = importlib.util.find_spec("tensorboard") is not None
    assert pick_trackers(None) == (("tensorboard",) if has_tensorboard else ())
    with pytest.raises(ConfigError, match="knows no tracker 'x'"):
        pick_trackers(["x", "x"])


def test_figures_are_the_finite_numbers_of_a_row() -> None:
    row = {"loss": 1.5, "rows": 8, "grad_norm": None, "eval_loss": float("nan"), "time": 1.0, "num_steps": 3}
    row["facts"] = {"a": 1}
    assert pick_figures(row) == {"loss": 1.5, "rows": 8.0}


def test_trackers_stay_offline_unless_a_variable_says_otherwise(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    set_offline("wandb", tmp_path, environ)
    set_offline("mlflow", tmp_path, environ)
    assert environ["WANDB_MODE"] == "offline"
    assert environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/mlflow.db"
    for variable, value in (("WANDB_API_KEY", "k"), ("WANDB_MODE", "online")):
        environ = {variable: value}
        set_offline("wandb", tmp_path, environ)
        assert environ == {variable: value, "WANDB_CONSOLE": "off"}


def test_no_secret_reaches_a_tracker_or_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    values = recipe(Path("demo"), Path("demo"), lora={"targets": ["q_proj", "v_proj"]})
    values["env"] = {"WANDB_API_KEY": "abcdefgh"}
    told = describe_recipe(from_dict(values))
    assert told["lora.targets"] == "q_proj, v_proj"
    assert told["data.eval_path"] == "null"
    assert "abcdefgh" not in json.dumps(told)
    monkeypatch.setenv("WANDB_API_KEY", "abcdefgh")
    assert hide_secrets("401 for key abcdefgh") == "401 for key ***"
