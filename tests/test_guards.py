"""The guards of conftest.py: a suite that leaves something out, or touches the person's files, must not look green."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run_pytest(folder: Path, body: str, *, ci: bool, uid: int = 0) -> str:
    """What pytest says of a test file under our conftest, to a person of this uid."""
    (folder / "conftest.py").write_text(
        f'import os\nos.geteuid = lambda: {uid}\npytest_plugins = ["tests.conftest"]\n'
    )
    (folder / "test_it.py").write_text("import pytest\n" + body)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "CI": "true" if ci else "",
        "NCCL_DEBUG": "INFO",
        "RANK": "3",
    }
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-rfE",
        "-p",
        "no:cacheprovider",
        "-W",
        "ignore",
        "--rootdir",
        ".",
    ]
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True).stdout


SKIPPED = """
@pytest.mark.{mark}
def test_it():
    pytest.skip("missing thing")
"""


@pytest.mark.parametrize("mark", ["lab", "slurm", "train"])
def test_a_skip_is_a_failure_in_ci(tmp_path: Path, mark: str) -> None:
    said = run_pytest(tmp_path, SKIPPED.format(mark=mark), ci=True)
    assert "1 failed" in said
    assert f"{mark} tests may not be skipped in CI" in said
    assert "missing thing" in said


def test_a_module_may_not_skip_itself_in_ci(tmp_path: Path) -> None:
    body = 'pytest.importorskip("no_such_package")\ndef test_it(): pass\n'
    assert "a module may not skip itself in CI" in run_pytest(tmp_path, body, ci=True)
    assert "1 skipped" in run_pytest(tmp_path, body, ci=False)


def test_a_skip_elsewhere_is_a_skip(tmp_path: Path) -> None:
    assert "1 skipped" in run_pytest(tmp_path, SKIPPED.format(mark="train"), ci=False)


@pytest.mark.parametrize("mark", ["lab", "slurm"])
def test_without_root_the_lab_is_left_out_and_said_so(tmp_path: Path, mark: str) -> None:
    body = f"@pytest.mark.{mark}\ndef test_it(): pass\ndef test_other(): pass\n"
    said = run_pytest(tmp_path, body, ci=False, uid=1000)
    assert "1 passed, 1 deselected" in said
    assert f"not run: 1 {mark} tests: they need root" in said


def test_soak_runs_only_when_asked_for(tmp_path: Path) -> None:
    body = "@pytest.mark.soak\ndef test_it(): pass\ndef test_other(): pass\n"
    said = run_pytest(tmp_path, body, ci=True)
    assert "1 passed, 1 deselected" in said
    assert "not run: 1 soak tests: make soak runs them" in said


def test_the_launchers_variables_are_gone_before_the_first_test(tmp_path: Path) -> None:
    body = "import os\ndef test_it(): assert not {'NCCL_DEBUG', 'RANK'} & os.environ.keys()\n"
    assert "1 passed" in run_pytest(tmp_path, body, ci=True)


def test_home_is_empty(empty_home: Path) -> None:
    assert Path.home() == empty_home
    assert list(empty_home.iterdir()) == []
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_only_loopback_can_be_reached() -> None:
    with socket.socket() as client, pytest.raises(AssertionError, match=r"a test connects to 192\.0\.2\.1"):
        client.connect(("192.0.2.1", 80))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())
