"""A torch that does not work on one host refuses the run there, before anything was trained, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.whole_path.conftest import ROOT, write_hosts

pytestmark = pytest.mark.lab
RECIPE = str(ROOT / "configs" / "lora.yaml")
RAISES = "raise ImportError('libgalaxyhip.so.5: cannot open shared object file')\n"
CRASHES = "import os, time\ntime.sleep(1)\nos.kill(os.getpid(), 11)\n"
MEETS = """
import os, socket, time
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
server = socket.create_server(("", address[1])) if os.environ["RANK"] == "0" else None
while True:
    try:
        line = socket.create_connection(address)
        break
    except OSError:
        time.sleep(0.1)
time.sleep({seconds})
"""


def break_torch(folder: Path, names: list[str], code: str) -> str:
    """A hostfile on whose second host importing torch runs this code."""
    (folder / "broken" / "torch").mkdir(parents=True)
    (folder / "broken" / "torch" / "__init__.py").write_text(code)
    lines = (folder / write_hosts(folder, names)).read_text().splitlines()
    (folder / "hosts").write_text(f"{lines[0]}\n{lines[1]} env.PYTHONPATH={folder}/broken\n")
    return "hosts"


def refused(done, folder: Path, host: str, code: str) -> None:
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"{code}: {host}: import torch: " in done.stderr
    assert "Traceback" not in done.stderr
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert (summary["exit"], summary["origin"], summary["kind"]) == (3, "launcher", "preflight")
    rows = json.loads((folder / "run" / "preflight.json").read_text())["findings"]
    assert [(row["code"], row["hosts"]) for row in rows if row["level"] == "error"] == [(code, [host])]


@pytest.mark.train
@pytest.mark.parametrize(
    ("code", "start", "name"),
    [
        (RAISES, "fork", "TORCH_NATIVE_DEPENDENCY_MISSING"),
        (RAISES, "spawn", "TORCH_NATIVE_DEPENDENCY_MISSING"),
        (CRASHES, "spawn", "TORCH_IMPORT_FAILED"),
    ],
    ids=["fork", "spawn", "crash"],
)
def test_a_recipe_is_refused_before_it_trains(lab, lab_path, code, start, name):
    names = lab.up(2)
    words = ["--hosts", break_torch(lab_path, names, code), "--run-dir", "run", "--start", start]
    done = lab.launch([*words, RECIPE, "model.path=demo", "data.path=demo"], cwd=lab_path, timeout=120)
    refused(done, lab_path, names[1], name)
    assert not (lab_path / "run" / "metrics.jsonl").exists()
    assert not (lab_path / "run" / "checkpoints").exists()
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_a_script_is_stopped_by_the_check_beside_it(lab, lab_path):
    names = lab.up(2)
    (lab_path / "own.py").write_text(MEETS.format(seconds=60))
    words = ["--hosts", break_torch(lab_path, names, RAISES), "--run-dir", "run"]
    done = lab.launch([*words, "own.py"], cwd=lab_path, timeout=50)
    refused(done, lab_path, names[1], "TORCH_NATIVE_DEPENDENCY_MISSING")
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


@pytest.mark.parametrize(
    "option",
    [["--no-torch-check"], ["--allow", "TORCH_NATIVE_DEPENDENCY_MISSING"]],
    ids=["left out", "allowed"],
)
def test_it_can_be_left_out_or_let_pass(lab, lab_path, option):
    names = lab.up(2)
    (lab_path / "own.py").write_text(MEETS.format(seconds=5))
    words = ["--hosts", break_torch(lab_path, names, RAISES), "--run-dir", "run", *option]
    done = lab.launch([*words, "own.py"], cwd=lab_path, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("TORCH_NATIVE_DEPENDENCY_MISSING" in done.stdout) == ("--allow" in option)


def test_a_script_that_ends_first_does_not_wait_for_the_check(lab, lab_path):
    names = lab.up(1)
    (lab_path / "own.py").write_text("pass\n")
    done = lab.launch(
        ["--hosts", write_hosts(lab_path, names), "--run-dir", "run", "own.py"], cwd=lab_path, timeout=50
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((lab_path / "run" / "preflight.json").read_text())["torch"] == {}
    lab.wait_gone(1, within_s=2)
