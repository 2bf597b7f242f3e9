"""Records -> files: the page, and the curves as a PNG beside it. Runs on the head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.base.errors import UsageError
from launcher.report.page.build import build_page
from launcher.report.plots import write_compared_png, write_loss_png
from launcher.report.run_record import RunRecord, read_record

PAGE_FILE = "report.html"


def write_page(records: Sequence[RunRecord], path: Path, language: str) -> None:
    """Write the page in one step.

    Raises:
        UsageError: it cannot be written there.
    """
    aside = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(build_page(records, language), encoding="utf-8", errors="replace")
        os.replace(aside, path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "another place with --out FILE") from None


def write_picture(records: Sequence[RunRecord], path: Path) -> bool:
    """Write the curves as a PNG; False, and no file, without matplotlib or without a loss.

    Raises:
        UsageError: it cannot be written there.
    """
    try:
        if len(records) == 1:
            return write_loss_png(records[0].metrics, path, records[0].label)
        return write_compared_png([(record.label, record.metrics) for record in records], path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "another place with --out FILE") from None


def write_own_page(run_dir: Path, language: str) -> Path:
    """The page of a run into its own folder; its path."""
    path = run_dir / PAGE_FILE
    write_page([read_record(run_dir)], path, language)
    return path
