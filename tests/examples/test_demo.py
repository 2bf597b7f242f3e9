"""The demo's own judgement: it may not end well when the loss did not fall, a step is missing or a command failed."""

import importlib
import json
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FALLING = [3.6, 4.6, 3.5, 3.4, 2.9, 3.3, 2.9, 2.8, 2.7, 2.9]


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("demo")


def write_run(folder, losses, picture=b"\x89PNG\r\n"):
    rows = [{"step": step, "loss": loss} for step, loss in enumerate(losses, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "loss.png").write_bytes(picture)


def test_a_loss_that_fell_is_well(demo, tmp_path, capsys):
    write_run(tmp_path, FALLING)
    demo.check_loss(tmp_path, len(FALLING))
    assert "first 5 steps 3.600, of the last 5 2.920: -19%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("losses", "steps", "words"),
    [
        (FALLING[:5] * 2, 10, "fell by less than 10%"),
        ([3.0] * 5 + [2.8] * 5, 10, "fell by less than 10%"),
        (FALLING, 12, "10 losses of 12 steps"),
        ([*FALLING[:9], float("nan")], 10, "10 losses of 10 steps"),
    ],
)
def test_anything_else_ends_the_demo(demo, tmp_path, losses, steps, words):
    write_run(tmp_path, losses)
    with pytest.raises(SystemExit, match=words):
        demo.check_loss(tmp_path, steps)


def test_a_missing_picture_ends_the_demo(demo, tmp_path):
    write_run(tmp_path, FALLING, picture=b"")
    with pytest.raises(SystemExit, match="no picture"):
        demo.check_loss(tmp_path, len(FALLING))


def test_a_command_that_fails_or_hangs_ends_the_demo(demo):
    with pytest.raises(SystemExit, match="exit code 3"):
        demo.run([sys.executable, "-c", "raise SystemExit(3)"], 60)
    with pytest.raises(SystemExit, match="more than 0 s"):
        demo.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2)
