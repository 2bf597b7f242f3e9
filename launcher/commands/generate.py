"""``dcu-launch generate``: what a trained model answers. Starts ``launcher.train.generate`` where the training stack is."""

from __future__ import annotations

import json

import click

from launcher.commands.in_python import become
from launcher.commands.model_options import (
    base_option,
    best_option,
    other_base_option,
    python_option,
    trust_option,
)


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.argument("what", metavar="RUN|ADAPTER|MODEL")
@click.argument("file", required=False, metavar="[FILE]")
@click.option(
    "-p", "--prompt", "prompts", multiple=True, metavar="TEXT", help="A question; may be given again."
)
@click.option("--system", default="", metavar="TEXT", help="A system message before each question.")
@best_option
@base_option
@click.option("--base-only", is_flag=True, help="Ask the base alone, without what was learnt.")
@click.option("--compare", is_flag=True, help="Ask base and adapter: both answers, to see what was learnt.")
@other_base_option
@click.option(
    "--max-new-tokens",
    type=click.IntRange(1, 1 << 20),
    default=256,
    show_default=True,
    metavar="N",
    help="At most so many tokens an answer.",
)
@click.option(
    "--temperature",
    type=click.FloatRange(0, 10),
    default=0.0,
    show_default=True,
    metavar="T",
    help="0: always the likeliest token; above: draw.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    metavar="P",
    help="Draw from the likeliest tokens that hold this share.",
)
@click.option(
    "--seed", type=int, default=42, show_default=True, metavar="N", help="What is drawn, with --temperature."
)
@click.option(
    "--template",
    type=click.Choice(["auto", "chat", "zh", "en"]),
    default="auto",
    show_default=True,
    help="How a question is put; auto: as in training.",
)
@click.option(
    "--precision",
    type=click.Choice(["auto", "bf16", "fp16", "fp32"]),
    default="auto",
    show_default=True,
    help="Number format of the computation.",
)
@click.option("--cpu", is_flag=True, help="Use no card.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line: prompt, answer.")
@trust_option
@python_option
def generate(python: str | None, **options: object) -> None:
    """Answer questions with what a run learnt, put as they were put in training.

    RUN is a run folder: its adapter on its base, or its model; with --best, or as RUN/checkpoints/step-N, its best
    checkpoint. ADAPTER and MODEL are folders. Questions come from --prompt, from FILE (one a line; *.jsonl: one object a
    line with "prompt", "instruction" or "messages"; - is stdin), or without either from the terminal, one after another.
    """
    become(python, "launcher.train.generate", [json.dumps(options)])
