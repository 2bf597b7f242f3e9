"""``dcu-launch report RUN...``: a page with curves, nodes, findings and settings of runs, from their folders alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from launcher.base.errors import UsageError

#: of more runs a chart has no lines that can be told apart
MAX_RUNS = 16


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-o",
    "--out",
    metavar="FILE",
    help="The page; default report.html in the run's folder, for several compare.html here.",
)
@click.option("--lang", type=click.Choice(["en", "zh"]), help="Language of the page; default: by the locale.")
@click.argument("runs", nargs=-1, metavar="[RUN]...")
def report(out: str | None, lang: str | None, runs: Sequence[str]) -> int:
    """Write one HTML page about a run, or about several compared, and the loss curves as a PNG beside it.

    RUN is a run folder, or the name of a run; without one, the newest. The page needs nothing beside itself: it can be
    mailed, and read offline. Runs that go on, failed or were refused have a page, too.
    """
    from launcher.report.language import pick_language
    from launcher.report.page.write import write_page, write_picture
    from launcher.report.run_record import read_records

    if len(runs) > MAX_RUNS:
        raise UsageError(f"{len(runs)} runs: expected {MAX_RUNS} at most")
    records = read_records([find_folder(run) for run in runs or (None,)])
    page, picture = _choose_paths(out, records[0].path, len(records))
    write_page(records, page, pick_language(lang, os.environ))
    click.echo(f"dcu-launch: report: {page}")
    if write_picture(records, picture):
        click.echo(f"dcu-launch: loss curve: {picture}")
    elif any(record.values("loss") for record in records):
        click.echo("dcu-launch: no PNG: matplotlib is not installed (the page has all curves)", err=True)
    for record in records:
        for problem in record.problems:
            click.echo(f"dcu-launch: warning: {record.path}: {problem}", err=True)
    return 0


def find_folder(word: str | None) -> Path:
    """The folder of a run: a path, the name of one, or None for the newest.

    Raises:
        UsageError: there is none.
    """
    if word and Path(word).is_dir():
        return Path(word)
    if word is not None and "/" in word:
        raise UsageError(f"there is no run folder {word}")
    from launcher.commands.find_run import find_run

    return find_run(word).path


def _choose_paths(out: str | None, folder: Path, num_runs: int) -> tuple[Path, Path]:
    if out is not None:
        page = Path(out)
        page = page if page.suffix.lower() in (".html", ".htm") else page.with_name(page.name + ".html")
        return page, page.with_suffix(".png")
    if num_runs == 1:
        return folder / "report.html", folder / "loss.png"
    return Path("compare.html"), Path("compare.png")
