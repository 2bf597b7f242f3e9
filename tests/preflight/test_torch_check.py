"""The check of torch, from the process on a node to findings: a healthy torch and several that are not."""

import json
import os
import sys
from pathlib import Path

import pytest

from launcher.hosts.host import Host
from launcher.node import deep_look
from launcher.preflight.report import read_report
from launcher.preflight.rules import Wanted, find_faults
from launcher.preflight.torch_told import merge_torch_facts
from tests.fakes.fake_torch import write_fake_torch
from tests.fakes.fakedtk import rccl_library

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = json.loads((ROOT / "tests" / "cases" / "healthy.json").read_text())


def look(folder: Path, limit: float = 30.0, rccl: int = 22203, **facts):
    """What the process says, as part of a healthy node's report; and the findings."""
    library = folder / "librccl.so.1"
    library.write_bytes(rccl_library(rccl))
    write_fake_torch(folder, library, **facts)
    message = {"what": "torch", "python": sys.executable, "limit": limit}
    answer = deep_look.look(message, str(ROOT), {**os.environ, "PYTHONPATH": str(folder)})
    told = merge_torch_facts(answer["facts"], answer["error"])
    reports = [read_report("w0", {**HEALTHY, "torch": told})]
    found = find_faults(reports, Wanted(False, "/project", [Host("w0")]))
    return reports[0].torch, [(finding.code, finding.message) for finding in found]


def test_a_healthy_torch(tmp_path):
    torch, found = look(tmp_path)
    assert found == []
    assert (torch.version, torch.hip, torch.device_count, torch.device_names[0]) == (
        "2.5.1",
        "6.3.25422",
        8,
        "BW",
    )
    assert torch.card_archs == ("gfx936:sramecc+:xnack-",)
    assert (torch.compiled_nccl, torch.loaded_nccl, torch.loaded_path) == (
        "2.22.3", "2.22.3", str(tmp_path / "librccl.so.1"),
    )  # fmt: skip
    assert dict(torch.operations) == {str(card): "" for card in range(8)}


@pytest.mark.parametrize(
    ("facts", "code", "piece"),
    [
        ({"archs": ("gfx906",)}, "ARCH_MISMATCH", "gfx906"),
        ({"rccl": 21903}, "RCCL_COMPILED_OTHER", "has loaded 2.19.3"),
        ({"cards": 7}, "TORCH_DEVICE_COUNT_MISMATCH", "sees 7 cards"),
        ({"cards": 0}, "TORCH_HCU_UNAVAILABLE", "sees none"),
        ({"before": "raise ImportError('libgalaxyhip.so.5: cannot open shared object file')"},
         "TORCH_NATIVE_DEPENDENCY_MISSING", "libgalaxyhip.so.5"),
        ({"before": "import no_such_module"}, "TORCH_IMPORT_FAILED", "no_such_module"),
        ({"before": "os.abort()"}, "TORCH_IMPORT_FAILED", "signal 6"),
        ({"operation": "value += (device.index == 3)"}, "CARD_OPERATION_FAILED", "card 3: wrong result"),
        ({"operation": "if device.index == 5: os.abort()"}, "CARD_OPERATION_FAILED", "card 5: killed by signal 6"),
        ({"operation": "import time; time.sleep(60 * (device.index == 2))", "limit": 3.0}, "CARD_OPERATION_FAILED",
         "card 2: no answer within 3 s"),
    ],
)  # fmt: skip
def test_a_torch_that_is_not(tmp_path, facts, code, piece):
    _, found = look(tmp_path, **facts)
    assert [told for told, _ in found] == [code]
    assert piece in found[0][1]
