"""What was learnt -> adapter/ or model/ with the tokenizer, whole or not there. Rank 0 writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.train.base_mark import mark_base
from launcher.train.checkpoint import write_folder
from launcher.train.loop import Setup
from launcher.train.model import CARD, copy_model_config, copy_tokenizer
from launcher.train.template import end_ids


def write_result(setup: Setup, dtype: Any) -> Path:
    """Write the result into the run folder and return its path.

    Args:
        dtype: of the weights of a whole model; adapters stay float32.
    """
    recipe, template = setup.recipe, setup.data.template
    is_adapter = setup.tuned.peft is not None
    card = {
        "base": recipe.model.path, "seed": recipe.train.seed, "template": template.name,
        "end_ids": end_ids(template), "method": recipe.method,
        "base_mark": mark_base(recipe.model.path, recipe.train.seed),
    }  # fmt: skip

    def write(folder: Path) -> None:
        if is_adapter:
            # modules_to_save are saved anyway; "auto" would look the base up on the hub
            setup.tuned.peft.save_pretrained(folder, safe_serialization=True, save_embedding_layers=False)
        else:
            weights = {name: tensor.to(dtype) for name, tensor in setup.tuned.causal.state_dict().items()}
            setup.tuned.causal.save_pretrained(folder, state_dict=weights, safe_serialization=True)
            copy_model_config(recipe.model.path, folder)
        copy_tokenizer(recipe.model.path, template.tokenizer, folder)
        (folder / CARD).write_text(json.dumps(card, indent=1, ensure_ascii=False), encoding="utf-8")

    target = setup.run_dir / ("adapter" if is_adapter else "model")
    write_folder(target, write, {"step": setup.num_steps, **setup.facts})
    return target
