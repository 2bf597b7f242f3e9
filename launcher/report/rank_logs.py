"""The ranks' log files of a run folder, read while they grow. In: plan.json and logs/; out: new bytes of each rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.base.regular_file import open_regular, read_text

PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RankLog:
    """Where a rank's output is."""

    rank: int
    host: str
    path: Path


def find_rank_logs(run_dir: Path) -> list[RankLog]:
    """The logs of all ranks of the plan, in the order of ranks, whether or not they exist yet; none before there is a plan.

    Where the plan is damaged those that exist, by their names.
    """
    try:
        plan = json.loads(read_text(run_dir / "plan.json"))
        return [
            RankLog(
                int(rank["rank"]), str(node["host"]),
                # the folder may be seen under another path from here
                run_dir / "logs" / Path(node["log_dir"]).name / f"rank-{rank['rank']:05d}.log",
            )
            for node in plan["nodes"]
            for rank in node["ranks"]
        ]  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return _find_by_name(run_dir)


def _find_by_name(run_dir: Path) -> list[RankLog]:
    """A rank that has no log here has one that does not exist; of two of one rank the newer one counts."""
    found = {}
    for path in sorted((run_dir / "logs").glob("*/rank-[0-9][0-9][0-9][0-9][0-9].log"), key=_changed):
        found[int(path.stem.removeprefix("rank-"))] = path
    nowhere = run_dir / "logs" / "?" / "rank"
    paths = [found.get(rank, nowhere) for rank in range(max(found, default=-1) + 1)]
    return [RankLog(rank, path.parent.name, path) for rank, path in enumerate(paths)]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class GrowingFile:
    """A file that is read on from where reading stopped; it need not exist yet.

    Args:
        last_lines: begin so many lines before its present end; None: at its beginning.
    """

    def __init__(self, path: Path, last_lines: int | None = None) -> None:
        self.path = path
        self._offset = 0 if last_lines is None else _offset_of_last(path, last_lines)

    def read(self) -> bytes:
        """What is new, at most ``PIECE_BYTES``; empty when nothing is."""
        try:
            with open_regular(self.path) as file:
                file.seek(self._offset)
                data = file.read(PIECE_BYTES)
        except OSError:
            return b""
        self._offset += len(data)
        return data

    def read_lines(self) -> Iterator[bytes]:
        """New whole lines, without their ends; a part of a line is read again later."""
        while True:
            data = self.read()
            whole, newline, rest = data.rpartition(b"\n")
            self._offset -= len(rest) if newline else len(data)
            if not newline:
                return
            yield from whole.split(b"\n")


def _offset_of_last(path: Path, lines: int) -> int:
    """Where the last lines begin; the newline at the very end of the file begins none."""
    try:
        with open_regular(path) as file:
            size = offset = file.seek(0, 2)
            if lines == 0:
                return size
            left = lines
            while offset > 0:
                start = max(0, offset - PIECE_BYTES)
                file.seek(start)
                piece = file.read(offset - start)
                at = len(piece)
                while (at := piece.rfind(b"\n", 0, at)) >= 0:
                    if start + at + 1 == size:
                        continue
                    left -= 1
                    if left <= 0:
                        return start + at + 1
                offset = start
    except OSError:
        pass
    return 0
