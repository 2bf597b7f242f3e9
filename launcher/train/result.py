"""What was learnt -> adapter/ or model/ with the tokenizer, whole or not there. Rank 0 writes.

RUN/adapter/ or RUN/model/                  the last step's
RUN/checkpoints/step-00000100/adapter/      LoRA: the same, in a checkpoint that was the best when it was written
RUN/checkpoints/step-00000100/dcu_launch.json   other methods: what its trainable.safetensors is laid over
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.train import zero
from launcher.train.base_mark import mark_base
from launcher.train.checkpoint import ADAPTER, write_folder
from launcher.train.methods import Tuned
from launcher.train.model import CARD, copy_model_config, copy_tokenizer
from launcher.train.model_card import write_model_card
from launcher.train.optimizer_state import named_trainable
from launcher.train.template import Template, end_ids


@dataclass(frozen=True, slots=True)
class Results:
    """Writes what a run has learnt.

    Attributes:
        rows: a line about the rows, for the result's README.
        facts: go into each manifest: run, config hash, versions.
        is_zero: whether DeepSpeed keeps the weights in pieces.
    """

    recipe: Recipe
    tuned: Tuned
    template: Template
    rows: str
    facts: dict[str, Any]
    is_zero: bool = False

    def gather(self) -> dict[str, Any] | None:
        """Under DeepSpeed: whole tensors from all ranks' pieces, on rank 0; otherwise None, the model has them."""
        if not self.is_zero:
            return None
        if self.tuned.peft is None:
            return zero.gather_whole(self.tuned.causal)
        return zero.gather_trainable(named_trainable(self.tuned.causal))

    def write(self, run_dir: Path, step: int, dtype: Any, gathered: dict[str, Any] | None = None) -> Path:
        """Write the result into the run folder and return its path.

        Args:
            dtype: of the weights of a whole model; adapters stay float32.
            gathered: whole tensors where the model itself holds pieces.
        """
        if self.tuned.peft is not None:
            return self._write_adapter(run_dir / ADAPTER, step, gathered)
        target = run_dir / "model"
        write_folder(target, lambda folder: self._put_model(folder, step, dtype, gathered), self._told(step))
        return target

    def add_to_checkpoint(self, folder: Path, step: int, gathered: dict[str, Any]) -> None:
        """Put what makes a checkpoint usable by itself into its folder, before that is there under its name.

        Args:
            gathered: what learns, as whole tensors.
        """
        if self.tuned.peft is None:
            self._put_card(folder)
            return
        # where the model is whole peft takes the tensors from it, as for the result
        self._write_adapter(folder / ADAPTER, step, gathered if self.is_zero else None)

    def _told(self, step: int) -> dict[str, Any]:
        return {"step": step, **self.facts}

    def _write_adapter(self, target: Path, step: int, gathered: dict[str, Any] | None) -> Path:
        # peft's wrapper holds the model under this name
        whole = {} if gathered is None else {
            "state_dict": {f"base_model.model.{name}": tensor for name, tensor in gathered.items()}
        }  # fmt: skip

        def write(folder: Path) -> None:
            # modules_to_save are saved anyway; "auto" would look the base up on the hub
            self.tuned.peft.save_pretrained(
                folder, safe_serialization=True, save_embedding_layers=False, **whole
            )
            self._put_rest(folder, step)

        write_folder(target, write, self._told(step))
        return target

    def _put_model(self, folder: Path, step: int, dtype: Any, gathered: dict[str, Any] | None) -> None:
        state = self.tuned.causal.state_dict() if gathered is None else gathered
        weights = {name: tensor.to(dtype) for name, tensor in state.items()}
        self.tuned.causal.save_pretrained(folder, state_dict=weights, safe_serialization=True)
        copy_model_config(self.recipe.model.path, folder)
        self._put_rest(folder, step)

    def _put_rest(self, folder: Path, step: int) -> None:
        copy_tokenizer(self.recipe.model.path, self.template.tokenizer, folder)
        self._put_card(folder)
        write_model_card(folder, self.recipe, self._mark(), self.rows, self._told(step))

    def _put_card(self, folder: Path) -> None:
        card = {
            "base": self.recipe.model.path, "seed": self.recipe.train.seed, "template": self.template.name,
            "end_ids": end_ids(self.template), "method": self.recipe.method, "base_mark": self._mark(),
        }  # fmt: skip
        (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), encoding="utf-8")

    def _mark(self) -> dict[str, Any]:
        return _mark_once(self.recipe.model.path, self.recipe.train.seed)


@functools.cache
def _mark_once(path: str, seed: int) -> dict[str, Any]:
    """A training run reads its base once: the mark of a large one is some hundred places of its files."""
    return mark_base(path, seed)
