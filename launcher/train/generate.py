"""Questions -> answers, by a base model or by base and adapter. Runs on one card, or on the CPU.

    python -m launcher.train.generate --model MODEL [--adapter ADAPTER] --prompt QUESTION [--prompt QUESTION ...]

Questions are put as they were in training: the result's folder says how.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from launcher.base.config import ModelConfig, Recipe, TrainConfig
from launcher.base.errors import ConfigError, LauncherError, UsageError
from launcher.train.main import import_stack
from launcher.train.model import CARD, check_paths, load_model, load_model_config, load_tokenizer
from launcher.train.precision import choose_attention, choose_precision, torch_dtype
from launcher.train.rows import Row, Turn
from launcher.train.template import choose_template, encode_question, end_ids
from launcher.train.world import write_error


def generate(
    model_path: str,
    adapter: str | Path | None,
    prompts: Sequence[str],
    *,
    max_new_tokens: int = 128,
    precision: str = "auto",
    trust_remote_code: bool = False,
) -> list[str]:
    """Answer each prompt, the likeliest word at a time.

    Args:
        model_path: a model folder, ``demo``, or empty for the adapter's own base.
        adapter: an adapter folder that training wrote; None asks the base alone.

    Raises:
        ConfigError: a path is not there or holds no model.
    """
    if adapter and not Path(adapter).is_dir():
        raise ConfigError(f"{adapter}: there is no such adapter folder", "RUN/adapter of a run that is done")
    card = read_card(Path(adapter) if adapter else Path(model_path))
    path = model_path or str(card.get("base", ""))
    if not path:
        raise ConfigError(f"{adapter}: its {CARD} names no base model", "--model MODEL")
    recipe = Recipe(
        model=ModelConfig(path=path, trust_remote_code=trust_remote_code),
        train=TrainConfig(precision=precision, seed=int(card.get("seed", 42))),
    )
    check_paths(recipe, with_rows=False)
    if adapter and not (Path(adapter) / "adapter_config.json").is_file():
        raise ConfigError(f"{adapter}: no adapter_config.json: not an adapter folder")
    import_stack()
    tokenizer = load_tokenizer(path, trust_remote_code)
    model, device = _load(recipe, tokenizer, adapter)
    rows = [
        Row((Turn("user", prompt),), "--prompt") for prompt in prompts
    ]  # their language counts where no card says it
    template = choose_template(str(card.get("template", "auto")), tokenizer, rows)
    stops = [int(number) for number in card.get("end_ids") or end_ids(template)]
    return [
        _answer(
            model, tokenizer, encode_question(template, [Turn("user", prompt)]), stops, max_new_tokens, device
        )
        for prompt in prompts
    ]


def read_card(folder: Path) -> dict[str, Any]:
    """What training wrote beside its result about base and template; empty for other folders."""
    try:
        card: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return card


def _load(recipe: Recipe, tokenizer: Any, adapter: str | Path | None) -> tuple[Any, Any]:
    import torch

    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    dtype = torch_dtype(choose_precision(recipe.train.precision, device).value)
    attention = choose_attention(recipe, device, dtype).value
    model = load_model(recipe, load_model_config(recipe, tokenizer), dtype, attention)
    if adapter:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, str(adapter))
    return model.to(device).eval(), device


def _answer(
    model: Any, tokenizer: Any, question: list[int], stops: list[int], max_new_tokens: int, device: Any
) -> str:
    import torch
    from transformers import GenerationConfig

    ids = torch.tensor([question], device=device)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        eos_token_id=stops,
        pad_token_id=stops[0],
        use_cache=True,
    )
    with torch.no_grad():
        output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return str(tokenizer.decode(output[0, len(question) :], skip_special_tokens=True)).strip()


def main(argv: list[str] | None = None) -> int:
    """Answer the prompts of the command line."""
    parser = argparse.ArgumentParser(prog="python -m launcher.train.generate", description="Answer prompts.")
    parser.add_argument("--model", default="", help="model folder; default: the adapter's base")
    parser.add_argument("--adapter", default=None, help="adapter folder; default: none, the base alone")
    parser.add_argument("--prompt", action="append", required=True, help="a question; may be given again")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="at most so many tokens an answer")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: prompt, answer")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code of the model folder"
    )
    options = parser.parse_args(argv)
    try:
        if not options.model and not options.adapter:
            raise UsageError("--model or --adapter: one of them is needed")
        answers = generate(
            options.model, options.adapter, options.prompt, max_new_tokens=options.max_new_tokens,
            trust_remote_code=options.trust_remote_code,
        )  # fmt: skip
    except LauncherError as error:
        write_error(error)
        return error.exit_code
    for prompt, answer in zip(options.prompt, answers, strict=True):
        line = (
            json.dumps({"prompt": prompt, "answer": answer}, ensure_ascii=False) if options.json else answer
        )
        sys.stdout.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
