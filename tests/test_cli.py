"""The command line before a verb has its own handling: signals end it with a word and the right code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.cli import main

DCU_LAUNCH = Path(sys.executable).with_name("dcu-launch")


@pytest.fixture
def importing(tmp_path: Path):
    """Starts dcu-launch, and returns it in the middle of its imports."""
    (tmp_path / "click.py").write_text("import time\nopen('importing', 'w').close()\ntime.sleep(600)\n")
    started = []

    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(*before: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*before, DCU_LAUNCH, "demo"], cwd=tmp_path, env=environment,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        deadline = time.monotonic() + 20
        while not (tmp_path / "importing").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_while_importing_ends_with_a_word(importing, tmp_path: Path, number, code):
    process = importing()
    process.send_signal(number)
    assert process.communicate(timeout=10) == ("", f"dcu-launch: error: stopped by {number.name}\n")
    assert process.returncode == code
    assert sorted(path.name for path in tmp_path.iterdir()) == ["click.py", "importing"]


def test_a_hang_up_that_is_ignored_stays_ignored(importing):
    process = importing("nohup")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=10)[1].endswith("dcu-launch: error: stopped by SIGTERM\n")


def test_handlers_are_put_back(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dcu-launch ")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == [signal.SIG_DFL] * 2
