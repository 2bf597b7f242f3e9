"""What a dry run says to a person: a few lines on stderr, equal nodes folded; the plan itself stays alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.commands.run import run
from tests.golden import check_golden

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(
    ("name", "hosts", "words"),
    [
        ("plan_even", "node[01-16] slots=8\n", ["train.py", "--lr", "1e-4", "a b"]),
        (
            "plan_uneven",
            "node01 slots=8 setup=/opt/dtk/env.sh\nnode02 devices=2,3 slots=2\nlocalhost\n",
            ["--env", "MY_TOKEN=hunter2", "--master-port", "29500", "train.py", "--api-key=hunter2"],
        ),
        ("plan_odd", "node01 slots=1\n", ["train.py", "two\nlines", "中文", "\udcff"]),
    ],
)
def test_a_dry_run_in_words(name, hosts, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    (tmp_path / "hosts").write_text(hosts)
    before = ["--hosts", "hosts", "--dry-run", "--run-dir", "/runs/golden", "--workdir", "/project"]
    result = CliRunner().invoke(run, [*before, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout_bytes.decode("utf-8", "surrogateescape"))["run"] == "golden"
    text = result.stderr_bytes.decode("utf-8", "surrogateescape")
    assert "hunter2" not in text
    check_golden(GOLDEN / f"{name}.txt", text)
