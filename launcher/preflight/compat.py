"""Compatibility tables: which driver a DTK takes, what a card and a package need. Data with its look-ups; on the head.

Ours lie in ``data/dtk.json``; a site's own files (``--compat FILE``, same shape) are merged over them, key by key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from launcher.base.errors import ConfigError
from launcher.preflight.version import DriverVersion, compare_drivers, parse_driver, read_numbers

TABLE = Path(__file__).resolve().parent / "data" / "dtk.json"


@cache
def _ours() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return table


def read_site_table(path: str) -> Mapping[str, Any]:
    """A site's table.

    Raises:
        ConfigError: it is missing, no JSON, or has keys that no table has.
    """
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--compat {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"--compat {path}: {error}", "a table is one JSON object, as in docs/findings.md"
        ) from None
    wrong = [name for name in table if name not in _ours()] if isinstance(table, dict) else ["the whole"]
    wrong = wrong or list(_find_misfits(table, [_ours()], ""))
    if wrong:
        raise ConfigError(
            f"--compat {path}: not understood: {', '.join(map(str, wrong))}",
            f"keys of a table: {', '.join(_ours())}",
        )
    return table  # type: ignore[no-any-return]


def _find_misfits(value: Any, examples: Sequence[Any], where: str) -> Iterator[str]:
    """Places of a table whose values are of another kind than ours are there, or in rows beside it."""
    if type(value) not in {type(example) for example in examples}:
        yield where
    elif isinstance(value, dict):
        rows = [example for example in examples if isinstance(example, dict)]
        for key, below in value.items():
            same = [row[key] for row in rows if key in row] or [item for row in rows for item in row.values()]
            yield from _find_misfits(below, same, f"{where}.{key}".removeprefix("."))
    elif isinstance(value, list):
        items = [item for example in examples if isinstance(example, list) for item in example]
        whole = [set(item) - {"why"} for item in items if isinstance(item, dict)]
        for number, below in enumerate(value):
            if isinstance(below, dict) and whole and not set.intersection(*whole) <= set(below):
                yield f"{where}[{number}] (needs {', '.join(sorted(set.intersection(*whole)))})"
            yield from _find_misfits(below, items, f"{where}[{number}]")


def merge_tables(extra: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Our table with the site's rows over it; lists are joined."""
    merged: Mapping[str, Any] = _ours()
    for table in extra:
        merged = _merge(merged, table)
    return merged


def _merge(below: Any, above: Any) -> Any:
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {
            key: _merge(below[key], above[key])
            if key in below and key in above
            else above.get(key, below.get(key))
            for key in {**below, **above}
        }
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    return above


@dataclass(frozen=True, slots=True)
class DriverVerdict:
    """What a table says of a driver under a DTK.

    Attributes:
        word: ``good``, ``old``, ``new``, or ``unknown``.
        limit: the driver that decides.
    """

    word: str
    limit: str = ""
    recommended: str = ""


def judge_driver(table: Mapping[str, Any], driver: str, dtk: str) -> DriverVerdict:
    """Whether a driver is within what the table allows for a DTK."""
    row = (table["dtk"].get(dtk) or {}).get("driver") or {}
    told = parse_driver(driver)
    recommended = row.get("recommended", "")
    if told is None or not row:
        return DriverVerdict("unknown", recommended=recommended)
    # no range is published for the oldest: what is recommended is then the only number there is
    minimum, maximum = row.get("minimum"), row.get("maximum")
    for limit, word, sign in ((minimum, "old", -1), (maximum, "new", 1)):
        if limit is None:
            continue
        order = _compare(table, told, limit)
        if order is None:
            return DriverVerdict("unknown", limit, recommended)
        if order == sign:
            return DriverVerdict(word, limit, recommended)
    return DriverVerdict("good" if minimum else "unknown", recommended=recommended)


def _compare(table: Mapping[str, Any], told: DriverVersion, limit: str) -> int | None:
    """Order of a driver against a limit that may count by the installer's number, where the kernel tells another."""
    bound = parse_driver(limit)
    if bound is None:
        return None
    series = table["driver_series"].get(".".join(map(str, told.dotted[:2])))
    installer = read_numbers(series) if series else ()
    if installer and installer == bound.dotted:
        told = DriverVersion(told.raw, installer, told.release, told.suffix)
    return compare_drivers(told, bound)
