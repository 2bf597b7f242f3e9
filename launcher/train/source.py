"""What a user names, a run folder, an adapter or a model -> the base and the adapter that are meant. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.errors import ConfigError
from launcher.train.base_mark import compare_marks, mark_base
from launcher.train.checkpoint import ADAPTER, read_pointer
from launcher.train.model import CARD, check_model_path


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trained model comes from.

    Attributes:
        base: a model folder, a name on the hub or ``demo``; the trained model itself where a run made a whole one.
        adapter: its folder, or None.
        card: what training wrote beside its result; empty for what another program made.
        learnt: tensors of a checkpoint that take the place of the base's of the same names, or None.
    """

    base: str
    adapter: Path | None
    card: dict[str, Any]
    learnt: Path | None = None

    @property
    def part(self) -> Path | None:
        """The folder of what was learnt on the base, where that is apart from it."""
        return self.adapter or (self.learnt.parent if self.learnt is not None else None)

    @property
    def seed(self) -> int:
        """What the demo's model is made from."""
        return int(self.card.get("seed", 42))


def find_source(what: str, base: str = "", allow_other_base: bool = False, best: bool = False) -> Source:
    """The source that a user means.

    Args:
        what: a run folder, a checkpoint of one, an adapter folder, a model folder, a name on the hub or ``demo``.
        base: of the adapter, instead of the one that training recorded.
        best: of a run its best checkpoint instead of its result.

    Raises:
        ConfigError: it is not there, holds nothing to load, or the base is another than the adapter's.
    """
    if not what.strip():
        raise ConfigError(
            "the run, adapter or model to load is empty", "a variable of your shell that is not set?"
        )
    folder = Path(what).expanduser()
    if best:
        folder = _best_of(folder)
    if is_checkpoint(folder):
        return _of_checkpoint(folder, base, allow_other_base)
    if is_run_folder(folder):
        folder = _result_of(folder)
        what = str(folder)
    if folder.is_dir() and (folder / "adapter_config.json").is_file():
        return _with_adapter(folder, base, allow_other_base)
    if base:
        raise ConfigError(f"--base: {what} is no adapter and needs none")
    if not folder.is_dir() and ("/" not in what or what.startswith((".", "/", "~"))) and what != "demo":
        raise ConfigError(
            f"{what}: there is no such run folder, adapter or model", "a run folder is runs/<time>-<recipe>"
        )
    check_model_path(what)
    return Source(what, None, read_card(folder))


def is_run_folder(folder: Path) -> bool:
    """Whether this is the folder of a run, done or not."""
    if not folder.is_dir() or (folder / "config.json").is_file():
        return False
    names = ("summary.json", "events.jsonl", "metrics.jsonl", "checkpoints", "adapter", "model")
    return any((folder / name).exists() for name in names)


def is_checkpoint(folder: Path) -> bool:
    """Whether this is the folder of a run's checkpoint, not a model or adapter that another program calls so."""
    folder = folder.absolute()
    if any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        return False
    return folder.is_dir() and folder.parent.name == "checkpoints" and folder.name.startswith("step-")


def _best_of(run_dir: Path) -> Path:
    if not is_run_folder(run_dir) or is_checkpoint(run_dir):
        raise ConfigError(f"--best: {run_dir} is no run folder", "a run folder is runs/<time>-<recipe>")
    name = read_pointer(run_dir, "best")
    if not name:
        raise ConfigError(
            f"--best: {run_dir} has no best checkpoint: none with an eval loss was saved here",
            "data.eval_fraction or data.eval_path, and train.eval_every; where nodes do not share the run folder, the best "
            "of freeze and full stays on the first node",
        )
    if not (run_dir / "checkpoints" / name).is_dir():
        raise ConfigError(f"--best: {run_dir}/checkpoints/best names {name}, which is not there")
    return run_dir / "checkpoints" / name


def _of_checkpoint(folder: Path, base: str, allow_other: bool) -> Source:
    """What training put into a checkpoint that was the best when it was written."""
    if (folder / ADAPTER / "adapter_config.json").is_file():
        return _with_adapter(folder / ADAPTER, base, allow_other)
    card, learnt = read_card(folder), folder / "trainable.safetensors"
    if not card or not learnt.is_file():
        raise ConfigError(
            f"{folder}: holds no {ADAPTER}/ and no {CARD}, from which it could be loaded: it was not the best one when it "
            "was written, or was written by an older dcu-launch",
            "the run folder itself means the last step's result, with --best the best one",
        )
    return _on_base(Source(base or str(card.get("base", "")), None, card, learnt), folder, allow_other)


def _result_of(run_dir: Path) -> Path:
    for name in ("adapter", "model"):
        if (run_dir / name).is_dir():
            return run_dir / name
    raise ConfigError(
        f"{run_dir}: the run has no adapter/ and no model/ yet",
        "they are written at its last step; started again with the same --run-dir, it goes on",
    )


def read_card(folder: Path) -> dict[str, Any]:
    """What training wrote beside its result about base and template; empty for other folders."""
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return card if isinstance(card, dict) else {}


def _with_adapter(adapter: Path, base: str, allow_other: bool) -> Source:
    card = read_card(adapter)
    path = base or str(card.get("base", "")) or _base_of_peft(adapter)
    return _on_base(Source(path, adapter, card), adapter, allow_other)


def _on_base(source: Source, what: Path, allow_other: bool) -> Source:
    """The source, if its base is here and the one that was trained on."""
    if not source.base:
        file = "adapter_config.json" if source.adapter else CARD
        raise ConfigError(f"{what}: its {file} names no base model", "--base MODEL")
    try:
        check_model_path(source.base)
    except ConfigError as error:
        raise ConfigError(
            f"{what}: its base is not here: {error.message}", "--base MODEL says where it lies"
        ) from None
    trained = source.card.get("base_mark")
    found = mark_base(source.base, source.seed)
    differences = compare_marks(trained if isinstance(trained, dict) else {}, found)
    shapes = [line for line in differences if " -> " in line]
    if differences and (shapes or not allow_other):
        told = "; ".join(differences)
        hint = "--base MODEL names the right one" + (
            "" if shapes else "; --allow-other-base takes this one all the same"
        )
        raise ConfigError(f"{what}: {source.base} is another base than it was trained on: {told}", hint)
    return source


def _base_of_peft(adapter: Path) -> str:
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        return str(config.get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError):
        return ""
