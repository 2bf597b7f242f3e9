"""What a user names, a run folder, an adapter or a model -> the base and the adapter that are meant. Standard library only."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.errors import ConfigError
from launcher.train.base_mark import compare_marks, mark_base
from launcher.train.model import CARD, check_model_path


@dataclass(frozen=True, slots=True)
class Source:
    """Where a trained model comes from.

    Attributes:
        base: a model folder, a name on the hub or ``demo``; the trained model itself where a run made a whole one.
        adapter: its folder, or None.
        card: what training wrote beside its result; empty for what another program made.
    """

    base: str
    adapter: Path | None
    card: dict[str, Any]

    @property
    def seed(self) -> int:
        """What the demo's model is made from."""
        return int(self.card.get("seed", 42))


def find_source(what: str, base: str = "", allow_other_base: bool = False) -> Source:
    """The source that a user means.

    Args:
        what: a run folder, an adapter folder, a model folder, a name on the hub or ``demo``.
        base: of the adapter, instead of the one that training recorded.

    Raises:
        ConfigError: it is not there, holds nothing to load, or the base is another than the adapter's.
    """
    if not what.strip():
        raise ConfigError(
            "the run, adapter or model to load is empty", "a variable of your shell that is not set?"
        )
    folder = Path(what).expanduser()
    if is_run_folder(folder):
        folder = _result_of(folder)
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
    if not path:
        raise ConfigError(f"{adapter}: its adapter_config.json names no base model", "--base MODEL")
    try:
        check_model_path(path)
    except ConfigError as error:
        raise ConfigError(
            f"{adapter}: its base is not here: {error.message}", "--base MODEL says where it lies"
        ) from None
    source = Source(path, adapter, card)
    trained = card.get("base_mark")
    differences = compare_marks(trained if isinstance(trained, dict) else {}, mark_base(path, source.seed))
    shapes = [line for line in differences if " -> " in line]
    if differences and (shapes or not allow_other):
        told = "; ".join(differences)
        hint = "--base MODEL names the right one" + (
            "" if shapes else "; --allow-other-base takes this one all the same"
        )
        raise ConfigError(f"{adapter}: {path} is another base than it was trained on: {told}", hint)
    return source


def _base_of_peft(adapter: Path) -> str:
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        return str(config.get("base_model_name_or_path") or "")
    except (OSError, ValueError, AttributeError):
        return ""
