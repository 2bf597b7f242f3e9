"""Options of the verbs that load what a run learnt."""

from __future__ import annotations

import click

base_option = click.option(
    "--base", default="", metavar="MODEL", help="The adapter's base, where it lies elsewhere now."
)
best_option = click.option(
    "--best", is_flag=True, help="Of a run its best checkpoint (lowest eval loss), not its last step."
)
other_base_option = click.option(
    "--allow-other-base",
    is_flag=True,
    help="Take a base whose weights are not those the adapter was trained on; its shapes must fit.",
)
trust_option = click.option(
    "--trust-remote-code", is_flag=True, help="Run Python code of the model folder: read it first."
)
python_option = click.option(
    "--python", metavar="PATH", help="Interpreter that has torch, transformers and peft; default: this one."
)
