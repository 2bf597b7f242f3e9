from __future__ import annotations

import builtins
import math
import struct
from pathlib import Path
from typing import Any

import pytest

from launcher.report.plots import smooth, write_loss_png

ROWS: list[dict[str, Any]] = [{"step": step, "loss": 3.0 / step, "lr": 1e-4} for step in range(1, 21)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        ROWS[:2],
        [*ROWS, {"step": 10, "eval_loss": 0.5}, {"step": 20, "eval_loss": 0.4}],
        [{"step": 1, "loss": 1.0}, {"step": 2, "loss": None}],
    ],
    ids=["plain", "short", "evaluated", "gap, no lr"],
)
def test_a_picture_is_written_whole(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    path = tmp_path / "loss.png"
    assert write_loss_png(rows, path, title="demo")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (960, 600)
    assert data.rstrip(b"\0")[-8:-4] == b"IEND"
    assert [entry.name for entry in tmp_path.iterdir()] == ["loss.png"]


@pytest.mark.parametrize("rows", [[], [{"step": 1, "lr": 1.0}], [{"step": 1, "loss": math.nan}]])
def test_without_a_loss_there_is_no_picture(tmp_path: Path, rows: list[dict[str, Any]]) -> None:
    assert not write_loss_png(rows, tmp_path / "loss.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_there_is_no_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)
    assert not write_loss_png(ROWS, tmp_path / "loss.png")
    assert list(tmp_path.iterdir()) == []


def test_smoothing_neither_lags_nor_bends_the_ends() -> None:
    flat = smooth([2.0] * 30, 0.9)
    assert flat == pytest.approx([2.0] * 30)
    step = smooth([1.0] * 30 + [0.0] * 30, 0.8)
    assert step[29] + step[30] == pytest.approx(1.0, abs=0.01)
    gap = smooth([1.0, math.nan, 1.0], 0.5)
    assert [math.isnan(value) for value in gap] == [False, True, False]
