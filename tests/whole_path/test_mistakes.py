"""What goes wrong first for a new user: one clear message, the right exit code, nothing started, nothing left."""

import json

import pytest

from tests.whole_path.conftest import ROOT, write_hosts

pytestmark = pytest.mark.lab
RECIPE = str(ROOT / "configs" / "lora.yaml")


def test_a_rank_that_raises_is_named_with_its_exception_and_log(lab, lab_path):
    names = lab.up(2)
    (lab_path / "bad.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '2':\n    raise ValueError('坏数据 第3行')\n"
        "time.sleep(60)\n",
        encoding="utf-8",
    )
    done = lab.launch(
        ["--hosts", write_hosts(lab_path, names), "--run-dir", "run", "bad.py"], cwd=lab_path, timeout=60
    )
    assert done.returncode == 1
    message = done.stderr[done.stderr.index("dcu-launch: error:") :]
    log = lab_path / "run" / "logs" / names[1] / "rank-00002.log"
    assert f"rank 2 on {names[1]} failed: ValueError: 坏数据 第3行" in message
    assert str(log) in message
    assert "坏数据" in log.read_text()
    assert "Traceback" in message
    assert "internal error" not in message
    summary = json.loads((lab_path / "run" / "summary.json").read_text())
    assert (summary["exit"], summary["origin"], summary["host"], summary["rank"]) == (1, "rank", names[1], 2)
    for host in (1, 2):
        lab.wait_gone(host, within_s=9)


def test_a_refused_run_has_an_end_and_offers_only_what_can_pass(lab, lab_path):
    names = lab.up(1)
    (lab_path / "own.py").write_text("open('started', 'w')\n")
    hosts = write_hosts(lab_path, names)
    words = ["--hosts", hosts, "--run-dir", "run", "--python", "/no/python", "own.py"]
    done = lab.launch(words, cwd=lab_path, timeout=60)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "PYTHON_MISSING" in done.stderr
    assert "--allow" not in done.stderr
    last = json.loads((lab_path / "run" / "events.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["data"]) == ("end", {"exit": 3, "kind": "preflight"})
    assert json.loads((lab_path / "run" / "summary.json").read_text())["exit"] == 3
    assert not (lab_path / "started").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--hosts", "nope.txt", "show.py"], 2, "nope.txt"),
        (["--hosts", "hosts", RECIPE, "train.max_stepz=3"], 2, "max_steps"),
        (["--hosts", "hosts", "missing.py"], 2, "missing.py"),
        (["--hosts", "hosts", "--no-such-option", "show.py"], 2, "--no-such-option"),
        (["--hosts", "hosts", "--allow", "NOT_A_CODE", "show.py"], 2, "NOT_A_CODE: no such finding"),
        (["--hosts", "hosts", "--run-dir", "old", "show.py"], 2, "/old: holds the run of a recipe"),
        (["--hosts", "dead", "show.py"], 4, "10.77.254.254"),
        (["--hosts", "hosts", RECIPE, "model.path=./none", "data.path=demo"], 3, "lacks ./none"),
        (["--hosts", "hosts", RECIPE, "model.path=/", "data.path=rows.jsonl"], 3, "lacks rows.jsonl"),
    ],
)
def test_mistakes_start_nothing(lab, lab_path, words, code, said):
    names = lab.up(1)
    write_hosts(lab_path, names)
    (lab_path / "dead").write_text(f"{names[0]} slots=1\n10.77.254.254 slots=1\n")
    (lab_path / "show.py").write_text("open('started', 'w')\n")
    (lab_path / "old").mkdir()
    (lab_path / "old" / "config.yaml").write_text("method: lora\n")
    done = lab.launch([*words[:2], "--connect-timeout", "2", *words[2:]], cwd=lab_path, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (lab_path / "started").exists()
    lab.wait_gone(1, within_s=6)
