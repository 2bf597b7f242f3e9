"""The ready batch scripts: read by bash and shellcheck, taken by sbatch, and what one does before its time limit."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.slurm.slurm_lab import wait_for

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "slurm").glob("*.sbatch"))
pytestmark = pytest.mark.slurm


def test_they_are_all_found() -> None:
    assert [path.stem for path in SCRIPTS] == [
        "any-script",
        "freeze",
        "lora",
        "one-card",
        "one-node",
        "zero3",
    ]
    assert len(list((ROOT / "slurm").iterdir())) == len(SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_bash_and_shellcheck_have_nothing_to_say(path: Path) -> None:
    for words in (["bash", "-n"], ["shellcheck", "--severity=style"]):
        done = subprocess.run([*words, str(path)], capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
    assert len(path.read_text().splitlines()) <= 20


def test_sbatch_takes_them(slurm) -> None:
    for path in SCRIPTS:
        done = slurm.lab.run(1, ["sbatch", "--test-only", str(path)], cwd=slurm.lab.shared)
        assert (done.returncode, "to start at" in done.stderr) == (0, True), f"{path.name}: {done.stderr}"


def test_dcu_launch_takes_their_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    from launcher.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    (tmp_path / "train.py").touch()
    for path in SCRIPTS:
        words = re.search(r"^exec dcu-launch (.*)", path.read_text().replace("\\\n", " "), re.MULTILINE)[
            1
        ].split()
        assert main(["--dry-run", *words]) == 0, capfd.readouterr().err


def test_the_signal_reaches_dcu_launch_itself(slurm, slurm_path: Path) -> None:
    """With exec the batch shell becomes dcu-launch."""
    text = (ROOT / "slurm" / "any-script.sbatch").read_text().replace("cpus-per-task=32", "cpus-per-task=2")
    (slurm_path / "job.sh").write_text(text)
    (slurm_path / "train.py").write_text(
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved', flush=True)))\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    job = slurm.submit(slurm_path / "job.sh")
    output = slurm_path / f"any-script-{job}.txt"
    wait_for(lambda: output.exists() and "up" in output.read_text(), 60, lambda: "not up")
    slurm.run(["scancel", "--batch", "--signal=USR1", str(job)])
    assert slurm.wait_state(job, "FAILED", "COMPLETED", "CANCELLED") == "FAILED"
    assert slurm.job(job)["ExitCode"] == "138:0"
    assert (
        json.loads((slurm_path / "runs" / f"any-script-{job}" / "summary.json").read_text())["kind"]
        == "interrupted"
    )
    assert "saved" in output.read_text()
