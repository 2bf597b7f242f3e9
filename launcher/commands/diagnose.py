"""``dcu-launch diagnose RUN``: what a run's records say against it, each with evidence, threshold and reason."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import click


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="One JSON object, for scripts.")
@click.option("--lang", type=click.Choice(["en", "zh"]), help="Language; default: by the locale.")
@click.argument("run", required=False, metavar="[RUN]")
def diagnose(as_json: bool, lang: str | None, run: str | None) -> int:
    """Say why the loss of a run does not fall, or what else stands out, and what to try.

    RUN is a run folder, or the name of a run; without one, the newest. A healthy run gives no verdict. The exit code is
    0 either way: a verdict is no failure.
    """
    from launcher.commands.report import find_folder
    from launcher.report.diagnosis.rules import diagnose as judge
    from launcher.report.diagnosis.rules import put_into_words
    from launcher.report.language import pick_language
    from launcher.report.page.words import words_of
    from launcher.report.run_record import read_record

    language = pick_language(lang, os.environ)
    record, words = read_record(find_folder(run)), words_of(language)
    said = [(verdict, put_into_words(verdict, language)) for verdict in judge(record)]
    losses = record.values("loss")
    if as_json:
        found: list[dict[str, Any]] = [
            {"code": verdict.code, "step": verdict.step, **dataclasses.asdict(text)} for verdict, text in said
        ]
        told = {"run": str(record.path), "state": record.state, "steps": len(losses), "verdicts": found}
        click.echo(json.dumps(told, ensure_ascii=False, indent=2))
        return 0
    state = words("unknown_state") if record.state == "unknown" else words(record.state)
    curve = f", {words('loss')} {losses[0]:.4g} -> {losses[-1]:.4g}" if losses else ""
    click.echo(f"{record.name}: {state}, {words('steps')} {len(losses)}{curve}")
    if not said:
        click.echo(words("no_verdict" if len(losses) >= LEAST_STEPS else "too_short"))
    for number, (verdict, text) in enumerate(said, start=1):
        click.echo(f"\n{number}. {text.title} ({verdict.code})")
        for key, value in (
            ("evidence", text.evidence),
            ("try", text.cure),
            ("threshold", text.threshold),
            ("reason", text.reason),
        ):
            click.echo(f"   {words(key)}: {value}")
    for problem in record.problems:
        click.echo(f"dcu-launch: warning: {problem}", err=True)
    return 0


#: fewer losses say nothing by their absence of verdicts
LEAST_STEPS = 10
