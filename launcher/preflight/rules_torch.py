"""Rules on what a process that imported torch said of its node. Pure; runs on the head."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.preflight.codes import CODES
from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport
from launcher.preflight.version import read_numbers

_MISSING_LIBRARY = re.compile(
    r"(lib[\w.+-]+): cannot open shared object file|undefined symbol|symbol \w+, version"
)


def torch_works(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """torch imports, sees the node's cards, was built for them, loads the right RCCL, and computes."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        torch = report.torch
        if not torch.checked:
            continue
        if not torch.imported:
            found.append(_import_error(report))
            continue
        found += _devices(report, len(host.devices) or report.usable_cards)
        found += _archs(report)
        if torch.compiled_nccl and torch.loaded_nccl and _differ(torch.compiled_nccl, torch.loaded_nccl):
            text = (
                f"{report.host}: torch was compiled against RCCL {torch.compiled_nccl} "
                f"and has loaded {torch.loaded_nccl} ({torch.loaded_path})"
            )
            found.append(make_finding("RCCL_COMPILED_OTHER", report.host, text))
        wrong = [f"card {card}: {what}" for card, what in torch.operations.items() if what]
        if wrong:
            text = f"{report.host}: a small product and its gradient fail: {'; '.join(wrong)}"
            found.append(make_finding("CARD_OPERATION_FAILED", report.host, text))
        elif torch.error:
            text = f"{report.host}: the check of torch did not end: {torch.error}"
            found.append(make_finding("TORCH_CHECK_INCOMPLETE", report.host, text))
    return found


def _import_error(report: NodeReport) -> Finding:
    native = _MISSING_LIBRARY.search(report.torch.error)
    code = "TORCH_NATIVE_DEPENDENCY_MISSING" if native else "TORCH_IMPORT_FAILED"
    return make_finding(code, report.host, f"{report.host}: import torch: {report.torch.error}")


def _devices(report: NodeReport, expected: int | None) -> list[Finding]:
    torch = report.torch
    if not expected or torch.available is None:
        return []
    if not torch.available:
        text = f"{report.host} has {expected} cards, and torch {torch.version} sees none"
        # a wheel without any card's code needs no look at the driver
        is_cpu = torch.hip is None and torch.cuda is None
        cure = CODES["TORCH_NOT_HIP_BUILD"].cure if is_cpu else ""
        return [make_finding("TORCH_HCU_UNAVAILABLE", report.host, text, cure=cure)]
    if torch.device_count is not None and torch.device_count != expected:
        text = f"{report.host}: torch sees {torch.device_count} cards, the node shows {expected}"
        return [make_finding("TORCH_DEVICE_COUNT_MISMATCH", report.host, text)]
    return []


def _archs(report: NodeReport) -> list[Finding]:
    torch = report.torch
    if not torch.archs:
        return []
    own = torch.card_archs or tuple(card.gfx for card in report.cards if card.gfx)
    built = {arch.split(":")[0] for arch in torch.archs}
    lacking = sorted({arch.split(":")[0] for arch in own} - built)
    # CUDA's sm_90 runs on whatever is later of the same family; gfx names must be there
    lacking = [arch for arch in lacking if arch.startswith("gfx")]
    if not lacking:
        return []
    text = f"{report.host}: torch {torch.version} has code for {', '.join(sorted(built))}, the card is {', '.join(lacking)}"
    return [make_finding("ARCH_MISMATCH", report.host, text)]


def _differ(left: str, right: str) -> bool:
    return read_numbers(left)[:3] != read_numbers(right)[:3]
