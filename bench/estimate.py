"""What ``dcu-launch estimate`` says beside what a card really needs: a few steps of each case, with random weights.

    python -m bench.estimate --shapes 0.5b,1.5b,7b --methods lora,freeze --lengths 2048,8192
    python -m bench.estimate --shapes tiny --device cpu --lengths 64      (the steps alone: a CPU counts no peak)

Measured is torch.cuda.max_memory_allocated over three steps of two full micro-batches each; compared with it is the
estimate less its reserve. ``off`` above 0: the estimate is too high. Each case has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from bench.forked import in_process
from bench.train import find_device
from bench.train_arms import SEED, SHAPES, Work, make_setup
from launcher.base.config import Recipe, from_dict
from launcher.report.estimate import GIB, as_mapping, estimate_memory
from launcher.report.model_shape import ModelShape, make_shape

STEPS = 3
MICRO_BATCHES = 2
ROW_TOKENS = 512


def main() -> None:
    """Measure and print."""
    asked = parse()
    device = asked.device or find_device()
    started = time.monotonic()
    cases = [
        (shape, method, int(length))
        for shape in asked.shapes.split(",")
        for method in asked.methods.split(",")
        for length in asked.lengths.split(",")
    ]
    found: list[dict[str, Any]] = []
    print(
        "| shape | method | tokens | measured GiB | estimated GiB | off | s |\n" + "| --- " * 7 + "|",
        flush=True,
    )
    for shape, method, length in cases:
        if time.monotonic() - started > asked.limit:
            print(f"{shape} {method} {length}: left out, {asked.limit} s are over", flush=True)
            continue
        began = time.monotonic()
        recipe = make_recipe(shape, method, length, asked.checkpointing)
        result = in_process(measure, shape, device, recipe)
        spent = time.monotonic() - began
        expected = estimate_memory(make_model_shape(shape), recipe, "bf16", 1, length)
        print(describe(shape, method, length, result, expected.allocated, spent), flush=True)
        found.append({"shape": shape, "method": method, "tokens": length, **result, **as_mapping(expected)})
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    for note in sorted({note for each in found for note in each.get("notes", ())}):
        print(note)
    raise SystemExit(1 if any("error" in each for each in found) else 0)


def parse() -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", default="0.5b,1.5b,7b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--methods", default="lora,freeze", help="of lora, freeze, full")
    parser.add_argument("--lengths", default="2048,8192", help="tokens of a micro-batch")
    parser.add_argument("--checkpointing", action="store_true", help="with train.gradient_checkpointing")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--limit", type=int, default=200, help="seconds after which no case is begun")
    parser.add_argument("--json", help="write all figures to this file")
    asked = parser.parse_args()
    if unknown := [shape for shape in asked.shapes.split(",") if shape not in SHAPES]:
        parser.error(f"no such shape: {', '.join(unknown)}; there are {', '.join(SHAPES)}")
    return asked


def make_recipe(shape: str, method: str, length: int, checkpointing: bool) -> Recipe:
    """A recipe whose every micro-batch is full; all else as it comes, but not compiled for three steps."""
    return from_dict(
        {
            "model": {"path": shape}, "data": {"path": "drawn", "max_length": min(ROW_TOKENS, length)}, "method": method,
            "train": {
                "max_steps": STEPS, "global_batch_size": MICRO_BATCHES * max(1, length // ROW_TOKENS),
                "max_tokens_per_card": length, "seed": SEED, "compile": "never",
                "gradient_checkpointing": checkpointing,
            },
        }
    )  # fmt: skip


def make_model_shape(name: str) -> ModelShape:
    """What estimate would read from the config.json of such a model."""
    width, inner, blocks, heads, key_heads, vocabulary, tied = SHAPES[name]
    return make_shape(
        {
            "model_type": "qwen2", "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner,
            "num_hidden_layers": blocks, "num_attention_heads": heads, "num_key_value_heads": key_heads,
            "tie_word_embeddings": tied,
        }
    )  # fmt: skip


def measure(shape: str, device: str, recipe: Recipe) -> dict[str, Any]:
    """The peak of three steps in bytes (None on a CPU), their losses, and what was chosen."""
    import torch

    from launcher.train.data import make_tokens
    from launcher.train.loop import Progress, run_step
    from launcher.train.template import Encoded

    batch_size, length = recipe.train.global_batch_size, recipe.data.max_length
    vocabulary = SHAPES[shape][5]
    generator = torch.Generator().manual_seed(SEED)
    drawn = torch.randint(vocabulary, (batch_size * STEPS, length), generator=generator).tolist()
    tokens = make_tokens([Encoded(ids, [False] + [True] * (length - 1)) for ids in drawn])
    room = recipe.train.max_tokens_per_card or length
    setup, notes = make_setup(Work(shape, device, batch_size, STEPS, 0, 0, room), recipe, tokens)
    if recipe.train.gradient_checkpointing:
        setup.tuned.causal.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False}
        )
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    progress = Progress()
    losses = [run_step(setup, progress)["loss"] for _ in range(STEPS)]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    held = torch.cuda.max_memory_reserved() if device == "cuda" else None
    return {"measured": peak, "held": held, "losses": losses, "notes": notes}


def describe(
    shape: str, method: str, length: int, result: dict[str, Any], expected: int, spent: float
) -> str:
    """A line of the table."""
    if "error" in result:
        return (
            f"| {shape} | {method} | {length} | {result['error']} | {expected / GIB:.2f} | - | {spent:.0f} |"
        )
    peak = result["measured"]
    measured, off = (f"{peak / GIB:.2f}", f"{expected / peak - 1:+.1%}") if peak else ("-", "-")
    return f"| {shape} | {method} | {length} | {measured} | {expected / GIB:.2f} | {off} | {spent:.0f} |"


if __name__ == "__main__":
    main()
