"""``dcu-launch merge``: one model out of base and adapter. Starts ``launcher.train.merge`` where the training stack is."""

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
@click.argument("what", metavar="RUN|ADAPTER")
@best_option
@base_option
@click.option(
    "-o",
    "--out",
    default="",
    metavar="DIR",
    help="The model folder to write; default: merged/ in the run (of a checkpoint merged-step-N/).",
)
@click.option(
    "--dtype",
    type=click.Choice(["base", "bf16", "fp16", "fp32"]),
    default="base",
    show_default=True,
    help="Number format of the written weights; base: as the base is stored.",
)
@other_base_option
@trust_option
@python_option
def merge(python: str | None, **options: object) -> None:
    """Merge a run's LoRA adapter into its base: a model folder that transformers and vLLM load by itself.

    The weights are added in float32 on the CPU (memory: four bytes a parameter, and the written copy) and compared with
    base and adapter before anything is written. Of a run that trained whole tensors (freeze, full), --best writes the base
    with those of its best checkpoint.
    """
    become(python, "launcher.train.merge", [json.dumps(options)])
