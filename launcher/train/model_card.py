"""What a result folder says of itself to people: base, method, data and how it is loaded. Rank 0 writes it as README.md.

peft writes a page of empty headings there; a folder that is handed on should say what it is worth something with.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.base.config import Recipe

_LOADS = {
    True: 'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("BASE"), "THIS FOLDER")',
    False: 'model = AutoModelForCausalLM.from_pretrained("THIS FOLDER")',
}


def write_model_card(
    folder: Path, recipe: Recipe, mark: dict[str, Any], rows: str, facts: dict[str, Any]
) -> None:
    """Write README.md in place of peft's.

    Args:
        mark: what the base is known by, see ``base_mark``.
        rows: a line about the rows that were learnt.
        facts: ``run``, ``config_hash``, ``versions`` and ``step``.
    """
    is_adapter = recipe.method == "lora"
    base = recipe.model.path
    known = f", weights sha256 `{mark['weights']}`" if mark.get("weights") else ""
    versions = ", ".join(f"{name} {version}" for name, version in facts.get("versions", {}).items())
    lines = [
        "---", f"base_model: {base}", *(["library_name: peft"] if is_adapter else []), "---",
        f"# {facts.get('run', 'result')}", "",
        f"- base: `{base}`{known}",
        f"- method: {recipe.method}" + (f", rank {recipe.lora.r}, alpha {recipe.lora.alpha:g}" if is_adapter else ""),
        f"- data: `{recipe.data.path}`; {rows}",
        f"- steps: {facts.get('step')} of {recipe.train.global_batch_size} rows, seed {recipe.train.seed}",
        f"- settings: sha256 `{facts.get('config_hash', '')}`; {versions}", "",
        "```python", _LOADS[is_adapter].replace("BASE", base), "```", "",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines), encoding="utf-8")
