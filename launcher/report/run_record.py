"""A run folder -> RunRecord: all that report and diagnosis know of a run. Runs on the head, reads that folder alone.

A folder may be of a run that goes on, was refused or broke off; files may be missing, cut short or damaged. What cannot
be read is left out and named in ``problems``; nothing that stands in a file is believed to be of the type it should be.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launcher.base.errors import UsageError
from launcher.base.limits import flatten
from launcher.base.regular_file import read_text
from launcher.launch.run_folder import SUMMARY_FILE
from launcher.launch.run_state import read_run
from launcher.report.metrics import take_series, to_float

#: files by which a folder is known as one of a run
_MARKS = ("events.jsonl", SUMMARY_FILE, "metrics.jsonl", "plan.json", "config.yaml")

Row = Mapping[str, Any]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run as its folder tells it.

    Attributes:
        name: of the folder; ``label`` tells runs of one name apart.
        state: ``running``, ``done``, ``failed``, ``refused``, ``stopped``, ``broken`` (ended without a
            word) or ``unknown`` (ranks that were started without the launcher).
        config: the recipe, nested; empty for scripts.
        hosts, findings, events, metrics, samples: rows of the files of that name.
        summary: how it ended; empty while it goes on.
        problems: what could not be read.
    """

    path: Path
    name: str
    state: str
    config: Row = field(default_factory=_nothing)
    hosts: Sequence[Row] = ()
    plan: Row = field(default_factory=_nothing)
    findings: Sequence[Row] = ()
    events: Sequence[Row] = ()
    metrics: Sequence[Row] = ()
    summary: Row = field(default_factory=_nothing)
    samples: Sequence[Row] = ()
    problems: tuple[str, ...] = ()
    label: str = ""

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) of one figure, in order of steps; NaN where it was no number."""
        return take_series(self.metrics, key)

    def values(self, key: str) -> list[float]:
        """The finite values of one figure, in order of steps."""
        return [value for _, value in self.series(key) if value == value]

    @property
    def facts(self) -> dict[str, Any]:
        """What the ranks said of model and rows, from the first rows of metrics."""
        found: dict[str, Any] = {}
        for row in self.metrics:
            if isinstance(row.get("facts"), Mapping):
                found.update(row["facts"])
        return found

    @property
    def settings(self) -> dict[str, Any]:
        """The recipe by dotted keys."""
        return dict(flatten(dict(self.config)))


def read_record(path: str | Path, label: str = "") -> RunRecord:
    """The record of a run folder.

    Raises:
        UsageError: there is no such folder, or it is none of a run.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UsageError(
            f"there is no run folder {folder}", "runs are under runs/ of the folder they were started in"
        )
    if not any((folder / name).exists() for name in _MARKS):
        raise UsageError(f"{folder} is no run folder: it has none of {', '.join(_MARKS)}")
    problems: list[str] = []
    summary = _as_mapping(_read_json(folder / SUMMARY_FILE, problems))
    preflight = _as_mapping(_read_json(folder / "preflight.json", problems))
    name = folder.resolve().name
    return RunRecord(
        path=folder,
        name=name,
        state=_find_state(folder, summary),
        config=_read_config(folder / "config.yaml", problems),
        hosts=_as_rows(_read_json(folder / "hosts.json", problems)),
        plan=_as_mapping(_read_json(folder / "plan.json", problems)),
        findings=_as_rows(preflight.get("findings")),
        events=_read_lines(folder / "events.jsonl", problems),
        metrics=_read_lines(folder / "metrics.jsonl", problems),
        summary=summary,
        samples=_read_lines(folder / "samples.jsonl", problems),
        problems=tuple(problems),
        label=label or name,
    )


def read_records(paths: Sequence[str | Path]) -> list[RunRecord]:
    """Records of several folders; those of one name get their parent's before it.

    Raises:
        UsageError: with all folders that are none of a run.
    """
    records, wrong = [], []
    for path in paths:
        try:
            records.append(read_record(path))
        except UsageError as error:
            wrong.append(error)
    if wrong:
        raise UsageError("\n".join(error.message for error in wrong), wrong[0].hint)
    names = [record.name for record in records]
    return [
        replace(record, label=f"{record.path.resolve().parent.name}/{record.name}")
        if names.count(record.name) > 1
        else record
        for record in records
    ]


def number(value: object) -> float | None:
    """A finite number as float, else None."""
    found = to_float(value)
    return None if math.isnan(found) else found


#: states as ``ps`` tells them, in the words of a page
_STATES = {"starting": "running", "running": "running", "stopping": "running", "dead": "broken"}


def _find_state(folder: Path, summary: Row) -> str:
    kind = summary.get("kind")
    if summary:
        if kind in ("done", "stopped", "interrupted"):
            return "done" if kind == "done" else "stopped"
        return "refused" if kind in ("preflight", "usage", "unreachable") else "failed"
    seen = read_run(folder)
    if seen is not None:
        return _STATES.get(seen.state, "broken")
    return "broken" if (folder / "events.jsonl").exists() else "unknown"


def _read_text(path: Path, problems: list[str]) -> str | None:
    try:
        return read_text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append(f"{path.name}: {error.strerror}")
        return None


def _read_json(path: Path, problems: list[str]) -> Any:
    text = _read_text(path, problems)
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        problems.append(f"{path.name}: is no JSON")
        return None


def _read_config(path: Path, problems: list[str]) -> Row:
    text = _read_text(path, problems)
    if text is None:
        return _nothing()
    from omegaconf import OmegaConf

    try:
        values = OmegaConf.to_container(OmegaConf.create(text))
    except Exception:  # what damaged YAML raises is an open set
        values = None
    if not isinstance(values, dict):
        problems.append(f"{path.name}: is no recipe")
        return _nothing()
    return {str(key): value for key, value in values.items()}


def _read_lines(path: Path, problems: list[str]) -> list[Row]:
    text = _read_text(path, problems)
    if text is None:
        return []
    rows, bad = [], 0
    lines = text.split("\n")
    for line in lines[:-1]:
        row = _parse_line(line)
        if row is not None:
            rows.append(row)
        bad += row is None and bool(line.strip())
    last = _parse_line(lines[-1])  # not ended yet: of a run that goes on, or was killed
    rows += [last] if last is not None else []
    if bad:
        problems.append(f"{path.name}: {bad} of {len(lines) - 1} lines cannot be read")
    return rows


def _parse_line(line: str) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _as_mapping(value: object) -> Row:
    return value if isinstance(value, dict) else _nothing()


def _as_rows(value: object) -> list[Row]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []
