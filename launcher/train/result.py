"""What was learnt -> adapter/ or model/ with the tokenizer, whole or not there. Rank 0 writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.train import zero
from launcher.train.base_mark import mark_base
from launcher.train.checkpoint import write_folder
from launcher.train.loop import Setup
from launcher.train.model import CARD, copy_model_config, copy_tokenizer
from launcher.train.model_card import write_model_card
from launcher.train.optimizer_state import named_trainable
from launcher.train.template import end_ids


def gather_result(setup: Setup) -> dict[str, Any] | None:
    """Under DeepSpeed: whole tensors from all ranks' pieces, on rank 0; otherwise None, the model has them."""
    if not setup.engine.is_zero:
        return None
    if setup.tuned.peft is None:
        return zero.gather_whole(setup.tuned.causal)
    learnt = zero.gather_trainable(named_trainable(setup.tuned.causal))
    # peft's wrapper holds the model under this name
    return {f"base_model.model.{name}": tensor for name, tensor in learnt.items()}


def write_result(setup: Setup, dtype: Any, gathered: dict[str, Any] | None = None) -> Path:
    """Write the result into the run folder and return its path.

    Args:
        dtype: of the weights of a whole model; adapters stay float32.
        gathered: whole tensors where the model itself holds pieces.
    """
    recipe, template = setup.recipe, setup.data.template
    is_adapter = setup.tuned.peft is not None
    mark = mark_base(recipe.model.path, recipe.train.seed)
    card = {
        "base": recipe.model.path, "seed": recipe.train.seed, "template": template.name,
        "end_ids": end_ids(template), "method": recipe.method,
        "base_mark": mark,
    }  # fmt: skip

    facts = {"step": setup.num_steps, **setup.facts}

    def write(folder: Path) -> None:
        if is_adapter:
            # modules_to_save are saved anyway; "auto" would look the base up on the hub
            whole = {} if gathered is None else {"state_dict": gathered}
            setup.tuned.peft.save_pretrained(
                folder, safe_serialization=True, save_embedding_layers=False, **whole
            )
        else:
            state = setup.tuned.causal.state_dict() if gathered is None else gathered
            weights = {name: tensor.to(dtype) for name, tensor in state.items()}
            setup.tuned.causal.save_pretrained(folder, state_dict=weights, safe_serialization=True)
            copy_model_config(recipe.model.path, folder)
        copy_tokenizer(recipe.model.path, template.tokenizer, folder)
        (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), encoding="utf-8")
        write_model_card(folder, recipe, mark, setup.data.messages[0], facts)

    target = setup.run_dir / ("adapter" if is_adapter else "model")
    write_folder(target, write, facts)
    return target
