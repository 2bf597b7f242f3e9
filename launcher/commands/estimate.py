"""``dcu-launch estimate``: the memory that a card needs for a model and a recipe, from config.json alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from launcher.base.config import Recipe, from_dict
from launcher.base.errors import UsageError
from launcher.base.recipe import load_recipe
from launcher.report.estimate import GIB, Estimate, as_mapping, estimate_memory, find_most_tokens
from launcher.report.model_shape import read_shape

#: GB of cards that people have
CARDS = (16, 32, 64)
#: ``train.max_tokens_per_card: null`` on a card
USUAL_TOKENS = 8192
_ROWS = (
    ("weights", "weights"),
    ("casts", "copies and buffers of a step"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer"),
    ("activations", "activations"),
    ("logits", "logits or one block's backward"),
    ("reserve", "reserve: context, gaps"),
    ("total", "a card needs"),
)


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    }
)
@click.option(
    "--method",
    type=click.Choice(["lora", "freeze", "full"]),
    help="What learns; default: the recipe's, or lora.",
)
@click.option("--recipe", "file", metavar="FILE", help="A recipe whose settings count.")
@click.option(
    "--precision", type=click.Choice(["bf16", "fp16", "fp32"]), help="Number format; default: bf16."
)
@click.option(
    "--cards",
    type=click.IntRange(1, 1 << 20),
    default=1,
    show_default=True,
    metavar="N",
    help="Cards of the run.",
)
@click.option(
    "--zero",
    type=click.IntRange(0, 3),
    metavar="0-3",
    help="DeepSpeed's ZeRO stage; 0: none (DDP). Default: the recipe's.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(8, 1 << 26),
    metavar="N",
    help="Tokens a card computes at once (train.max_tokens_per_card); default: the recipe's, or 8192.",
)
@click.option("--json", "as_json", is_flag=True, help="All figures as JSON; memory in bytes.")
@click.argument("words", nargs=-1, metavar="MODEL [KEY=VALUE]...")
def estimate(
    file: str | None,
    precision: str | None,
    cards: int,
    as_json: bool,
    words: Sequence[str],
    **options: Any,
) -> None:
    """Say how much memory a card needs to fine-tune MODEL, and what fits on cards of 16, 32 and 64 GB.

    MODEL is a model folder or its config.json alone; no weights are read, and no card is needed. KEY=VALUE are settings of
    a recipe, such as train.gradient_checkpointing=true. With --recipe, MODEL may be left out.
    """
    recipe = read_recipe(file, words, options)
    shape = read_shape(recipe.model.path)
    wish = recipe.train.precision
    chosen = precision or ("bf16" if wish == "auto" else wish)
    tokens = recipe.train.max_tokens_per_card or USUAL_TOKENS
    found = estimate_memory(shape, recipe, chosen, cards, tokens)
    most = {room: find_most_tokens(shape, recipe, chosen, cards, room * GIB) for room in CARDS}
    if as_json:
        fits = {
            str(room): {"fits": found.total <= room * GIB, "max_tokens_per_card": most[room]}
            for room in CARDS
        }
        known = {"method": recipe.method, "precision": chosen, "cards": cards, "zero_stage": _stage(recipe)}
        click.echo(json.dumps({**known, **as_mapping(found), "cards_gb": fits}, indent=1))
        return
    for line in describe(recipe, chosen, cards, found, most):
        click.echo(line)


def read_recipe(file: str | None, words: Sequence[str], options: dict[str, Any]) -> Recipe:
    """The recipe that options, file and words come to; raises UsageError or ConfigError."""
    named = [word for word in words if "=" not in word]
    if len(named) > 1:
        raise UsageError(f"one MODEL is expected; found {', '.join(named)}", "settings are KEY=VALUE")
    given = [word for word in words if "=" in word]
    if named:
        given.append(f"model.path={named[0]}")
    if not named and file is None and not any(word.startswith("model.path=") for word in given):
        raise UsageError(
            "estimate needs a model folder or its config.json", "dcu-launch estimate /models/NAME"
        )
    if options["method"]:
        given.append(f"method={options['method']}")
    if options["max_tokens"]:
        given.append(f"train.max_tokens_per_card={options['max_tokens']}")
    if options["zero"] is not None:
        given += (
            ["engine=ddp"]
            if options["zero"] == 0
            else ["engine=deepspeed", f"deepspeed.zero_stage={options['zero']}"]
        )
    if not any(word.startswith("data.path=") for word in given):
        given.append("data.path=demo")  # rows do not count, but a recipe has some
    recipe = from_dict(load_recipe(file, given, start={}))
    if recipe.model.path == "demo":
        raise UsageError("the demo's model needs no estimate: it fits everywhere")
    return recipe


def _stage(recipe: Recipe) -> int:
    return recipe.deepspeed.zero_stage if recipe.engine == "deepspeed" else 0


def describe(recipe: Recipe, precision: str, cards: int, found: Estimate, most: dict[int, int]) -> list[str]:
    """The lines that a user reads."""
    stage = _stage(recipe)
    engine = f"ZeRO-{stage}" if stage else "DDP"
    checkpointing = ", gradient checkpointing" if recipe.train.gradient_checkpointing else ""
    share = 100 * found.trainable / found.parameters
    lines = [
        f"{found.parameters:,} parameters, of which {found.trainable:,} learn ({share:.2f}%)"
        if recipe.method != "lora"
        else f"{found.parameters:,} parameters; adapters of {found.trainable:,} learn ({share:.2f}%)",
        f"method {recipe.method}, {precision}, {cards} card{'s' if cards > 1 else ''}, {engine}{checkpointing}, "
        f"{found.tokens} tokens at once",
        "",
    ]
    values = as_mapping(found)
    lines += [f"  {label:<32}{values[name] / GIB:9.2f} GiB" for name, label in _ROWS]
    lines.append("")
    lines += [f"  {room:>2} GB: {_say_fit(recipe, found, room, tokens)}" for room, tokens in most.items()]
    if any(tokens < recipe.data.max_length for tokens in most.values()):
        lines += ["", f"  for less: {_say_cure(recipe, stage, cards)}"]
    return lines


def _say_fit(recipe: Recipe, found: Estimate, room: int, tokens: int) -> str:
    if tokens < recipe.data.max_length:
        if tokens == 0:
            return "does not fit, however few tokens at once"
        return f"does not fit: {tokens} tokens at once would, but rows may have {recipe.data.max_length}"
    word = "fits" if found.total <= room * GIB else "does not fit as it is"
    return f"{word}; train.max_tokens_per_card={tokens} at most"


def _say_cure(recipe: Recipe, stage: int, cards: int) -> str:
    cures = []
    if not recipe.train.gradient_checkpointing:
        cures.append("train.gradient_checkpointing=true")
    if recipe.method == "full":
        cures.append("--zero 3 with more --cards" if stage < 3 or cards == 1 else "more --cards")
        cures.append("--method lora")
    elif stage < 3:
        cures.append("--zero 3 with more --cards: frozen weights are shared, too")
    return ", ".join(cures) or "more --cards, or shorter rows (data.max_length)"
