"""Guards around every test: no home, no launcher's variables, no network; and what may not be left out in CI.

In CI (``CI=true``) a lab, slurm or train test that is skipped is a failure. Elsewhere what this machine cannot run
(no root: no lab; no torch: no training) is left out and listed as ``not run`` at the end.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import signal
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fixtures import lab, lab_path, lab_session

__all__ = ["lab", "lab_path", "lab_session"]

ROOT = Path(__file__).resolve().parent.parent
IN_CI = os.environ.get("CI") == "true"
NEVER_SKIPPED = {"lab", "slurm", "train"}
#: variables that would change what is tested
FOREIGN = (
    "RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "NODE_RANK", "MASTER_", "TORCH", "PYTORCH_", "ACCELERATE_",
    "DEEPSPEED_", "DS_", "SLURM", "SBATCH_", "SRUN_", "OMPI_", "PMI", "NCCL_", "RCCL_", "GLOO_", "UCX_", "SHCA_", "HIP_",
    "HSA_", "ROCM_", "ROCR_", "HCU_", "CUDA_", "MIOPEN_", "GPU_", "DTK", "OMP_", "MKL_", "HF_", "TRANSFORMERS_",
    "TOKENIZERS_", "SSH_", "XDG_", "DCU_LAUNCH", "PYTHONPATH", "PYTHONWARNINGS", "NO_COLOR", "FORCE_COLOR", "CLICOLOR",
    "COLUMNS", "LINES", "BASH_ENV", "NOTIFY_SOCKET",
)  # fmt: skip

not_run: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment, and what a shell or nohup had ignored, before any fixture or module sees it."""
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in list(os.environ):
        if name.startswith(FOREIGN):
            del os.environ[name]
    cache = ROOT / ".work" / "test-cache"
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        # made once and kept: matplotlib's list of fonts, DeepSpeed's compiled parts
        "MPLCONFIGDIR": str(cache / "matplotlib"),
        # each environment's own (.venv-oldest: a lane): they are built against its torch
        "TORCH_EXTENSIONS_DIR": str(cache / f"torch-extensions{Path(sys.prefix).name.removeprefix('.venv')}"),
    }


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long repetitions unless asked for, and, outside CI, what this machine cannot run."""
    reasons = _reasons_not_to_run(config.option.markexpr)
    left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in reasons)]
    for item in left_out:
        mark = next(mark for mark in reasons if item.get_closest_marker(mark))
        not_run[f"{mark} tests: {reasons[mark]}"] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _reasons_not_to_run(expression: str) -> dict[str, str]:
    reasons = {} if "soak" in expression else {"soak": "make soak runs them"}
    if IN_CI:
        return reasons
    if os.geteuid() != 0:
        reasons |= dict.fromkeys(("lab", "slurm"), "they need root")
    if importlib.util.find_spec("torch") is None:
        reasons["train"] = "they need torch"
    return reasons


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """In CI a skipped lab, slurm or train test has failed."""
    report = yield
    marks = NEVER_SKIPPED & {mark.name for mark in item.iter_markers()}
    if IN_CI and report.skipped and marks and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{' and '.join(sorted(marks))} tests may not be skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    """In CI a module that skips itself has failed."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"a module may not skip itself in CI: {report.longrepr}"
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what was left out, so that a green run is not taken for a whole one."""
    for reason, count in sorted(not_run.items()):
        terminalreporter.write_line(f"not run: {count} {reason}")


@pytest.fixture(autouse=True)
def empty_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own for each test: no ~/.ssh, no caches, no configuration of the person who runs the tests."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture(autouse=True)
def loopback_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection but to this machine, in tests that are not marked as needing more."""
    if not NEVER_SKIPPED & {mark.name for mark in request.node.iter_markers()}:
        for name in ("connect", "connect_ex"):
            monkeypatch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(connect: Any) -> Any:
    def guard(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            raise AssertionError(f"a test connects to {address[0]}: only loopback is allowed")
        return connect(self, address)

    return guard


def _is_loopback(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
