"""Rows of figures -> TensorBoard and whatever else Accelerate's trackers know. Runs in rank 0.

Each tracker has a thread of its own: one that waits for a server or fails is warned of, and training goes on without it.
"""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe, to_dict
from launcher.base.errors import ConfigError
from launcher.base.limits import flatten
from launcher.base.variable import MASK, is_secret
from launcher.train.channel import Channel

#: begins the names of the threads
THREAD_NAME = "tracker-"
#: what the figures of all runs are put under where a tracker has projects
PROJECT = "dcu-launch"
#: after the last step trackers have so many seconds for what they still hold; fewer when the run ends early
END_S, EARLY_END_S = 30.0, 3.0
#: rows that wait for a tracker; what comes when it is full is left out
_ROOM = 10_000
#: of a row, but no figure to draw
_NO_FIGURES = ("time", "num_steps")
#: a cluster's nodes seldom reach the internet: these keep their figures in files unless one of the variables says otherwise
_OFFLINE: dict[str, tuple[tuple[str, str], tuple[str, ...]]] = {
    "wandb": (("WANDB_MODE", "offline"), ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL")),
    "swanlab": (("SWANLAB_MODE", "offline"), ("SWANLAB_MODE", "SWANLAB_API_KEY", "SWANLAB_API_HOST")),
    "clearml": (
        ("CLEARML_OFFLINE_MODE", "1"),
        ("CLEARML_OFFLINE_MODE", "CLEARML_API_ACCESS_KEY", "CLEARML_API_HOST", "CLEARML_CONFIG_FILE"),
    ),
    "comet_ml": (("COMET_START_ONLINE", "0"), ("COMET_START_ONLINE", "COMET_API_KEY")),
}


def pick_trackers(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The trackers of a run: those named, or TensorBoard where it is installed; raises ConfigError with all that cannot be."""
    from accelerate import tracking

    known = {str(name) for name in tracking.LOGGER_TYPE_TO_CLASS}
    here = {str(getattr(name, "value", name)) for name in tracking.get_available_trackers()}
    if wanted is None:
        return ("tensorboard",) if "tensorboard" in here else ()
    problems = [
        f"train.trackers: {name} is not installed where rank 0 runs"
        if name in known
        else f"train.trackers: Accelerate knows no tracker {name!r}; it knows {', '.join(sorted(known))}"
        for name in dict.fromkeys(wanted)
        if name not in here
    ]
    if problems:
        raise ConfigError(
            "\n".join(problems), "pip install it there, or leave it out: train.trackers=[] tells none"
        )
    return tuple(dict.fromkeys(wanted))


class Trackers:
    """The trackers of a run, all at work in the background.

    Args:
        names: as Accelerate calls them.
        from_step: figures of later steps belong to an attempt that ended after its last checkpoint.
    """

    def __init__(
        self, names: Sequence[str], recipe: Recipe, run: tuple[str, Path], from_step: int, channel: Channel
    ) -> None:
        self._channel, (run_name, run_dir) = channel, run
        config = describe_recipe(recipe) if names else {}
        for name in names:
            set_offline(name, run_dir, os.environ)
        self._all = [_Tracker(name, run_name, run_dir, from_step, config) for name in names]

    def log(self, step: int, row: Mapping[str, Any]) -> None:
        """Hand over the figures of a step; never waits."""
        figures = pick_figures(row)
        for tracker in self._all:
            tracker.put(step, figures)
        self._tell()

    def close(self, wait_s: float) -> None:
        """Let trackers finish, for so many seconds all together."""
        deadline = time.monotonic() + wait_s
        for tracker in self._all:
            tracker.end()
        for tracker in self._all:
            tracker.join(max(0.0, deadline - time.monotonic()))
            if tracker.is_alive():
                self._channel.warn(
                    f"tracker {tracker.label}: not done {wait_s:g} s after the last step; left"
                )
        self._tell()

    def _tell(self) -> None:
        for tracker in self._all:
            while tracker.problems:  # told from here: the channel is not for two threads
                self._channel.warn(f"tracker {tracker.label}: {tracker.problems.pop(0)}")


class _Tracker(threading.Thread):
    """One tracker in its thread."""

    def __init__(
        self, name: str, run_name: str, run_dir: Path, from_step: int, config: dict[str, Any]
    ) -> None:
        super().__init__(name=THREAD_NAME + name, daemon=True)
        self.label, self.problems = name, list[str]()
        self._place, self._config = (run_name, run_dir, from_step), config
        self._rows: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue(_ROOM)
        self._is_full = False
        self.start()

    def put(self, step: int, figures: dict[str, float]) -> None:
        """Queue a row, unless the tracker has failed."""
        if not self.is_alive():
            return
        try:
            self._rows.put_nowait((step, figures))
            self._is_full = False
        except queue.Full:
            if not self._is_full:
                self.problems.append(f"does not keep up: steps from {step} on are left out")
            self._is_full = True

    def end(self) -> None:
        """Let it finish after what is queued."""
        if self._is_full:
            self._rows.get_nowait()
        self._rows.put_nowait(None)

    def run(self) -> None:
        try:
            tracker = make_tracker(self.label, *self._place)
            if self.label != "tensorboard":  # it would make a second run of them, with a folder of its own
                tracker.store_init_configuration(self._config)
            while (item := self._rows.get()) is not None:
                step, figures = item
                tracker.log(figures, step=step)
            tracker.finish()
        except (Exception, SystemExit) as error:  # whatever a library that talks to servers may raise
            text = hide_secrets(" ".join(str(error).split())[:300])
            self.problems.append(f"{type(error).__name__}: {text}; training goes on without it")


def make_tracker(name: str, run_name: str, run_dir: Path, from_step: int) -> Any:
    """Accelerate's tracker of this name, started, with its files in the run folder where it lets us say so."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    options: dict[str, dict[str, Any]] = {
        "tensorboard": {"logging_dir": str(run_dir), **({"purge_step": from_step + 1} if from_step else {})},
        "wandb": {"name": run_name, "dir": str(run_dir)},
        "mlflow": {"run_name": run_name},
        "aim": {"logging_dir": str(run_dir)},
        "dvclive": {"dir": str(run_dir / "dvclive")},
        "swanlab": {"experiment_name": run_name, "logdir": str(run_dir / "swanlab")},
        "trackio": {"name": run_name},
    }
    # TensorBoard's first word is its folder's name
    tracker = LOGGER_TYPE_TO_CLASS[name](
        "tensorboard" if name == "tensorboard" else PROJECT, **options.get(name, {})
    )
    if hasattr(tracker, "start"):  # older ones of Accelerate start when they are made
        tracker.start()
    return tracker


def set_offline(name: str, run_dir: Path, environ: MutableMapping[str, str]) -> None:
    """Keep a tracker from the internet and its files in the run folder, unless a variable says otherwise."""
    if name in _OFFLINE:
        (variable, value), others = _OFFLINE[name]
        if not any(environ.get(other) for other in others):
            environ[variable] = value
    if name == "wandb":
        environ.setdefault("WANDB_CONSOLE", "off")  # the output of ranks is kept already
    if name == "mlflow" and not environ.get("MLFLOW_TRACKING_URI"):
        environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{run_dir / 'mlflow.db'}"
        environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if name == "comet_ml":
        environ.setdefault("COMET_OFFLINE_DIRECTORY", str(run_dir / "comet_ml"))


def describe_recipe(recipe: Recipe) -> dict[str, Any]:
    """The keys of a recipe as trackers take them; without ``env``, which may hold secrets."""
    values = {key: value for key, value in flatten(to_dict(recipe)) if key != "env"}
    return {
        key: ", ".join(value) if isinstance(value, list) else "null" if value is None else value
        for key, value in values.items()
    }


def pick_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """What of a row of metrics can be drawn; numbers that are not finite are left out."""
    return {
        key: float(value)
        for key, value in row.items()
        if isinstance(value, int | float) and key not in _NO_FIGURES and math.isfinite(value)
    }


def hide_secrets(text: str) -> str:
    """A text that goes into the run folder, without the values of variables that hold secrets."""
    for name, value in os.environ.items():
        if is_secret(name) and len(value) > 3:
            text = text.replace(value, MASK)
    return text


def leave_if_stuck(code: int, last_words: Callable[[], str] = str) -> None:
    """End the process at once where a tracker still hangs: what its library does at the end of Python would hang too."""
    if any(thread.name.startswith(THREAD_NAME) and thread.is_alive() for thread in threading.enumerate()):
        sys.stderr.write(last_words())
        sys.stderr.flush()
        sys.stdout.flush()
        os._exit(code)
