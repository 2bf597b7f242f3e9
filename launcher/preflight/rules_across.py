"""Rules that compare nodes with each other. Pure; runs on the head.

What a rule inside a node has already explained is not told again as a difference: ``EXPLAINED`` says which codes
explain which fields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from launcher.base.variable import DCU_DEFAULTS
from launcher.hosts.target import fold_names
from launcher.preflight.comparison import (
    ABSENT,
    COMPARED_PACKAGES,
    FIELDS,
    SAME,
    Comparison,
    Field,
    compare,
)
from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport

CLOCK_LIMIT_S = 2.0
#: of a folder that differs, so many are named
MAX_FILES = 3
_LIBRARIES = ("hip", "rccl", "nccl")
EXPLAINED: Mapping[str, tuple[str, ...]] = {
    "DRIVER_TOO_OLD": ("driver",),
    "DRIVER_VERSION_UNAVAILABLE": ("driver",),
    "HYCU_DRIVER_NOT_LOADED": ("driver", "card", "cards", "vbios", *_LIBRARIES),
    "HCU_DEVICE_NODE_MISSING": ("card", "cards", "vbios"),
    "CARD_NEEDS_NEWER_STACK": ("driver", "dtk"),
    "HYHAL_MISSING": ("card", "vbios", *_LIBRARIES),
    "UCX_NOT_AVAILABLE": ("ucx",),
    "DTK_NOT_SET_UP": ("dtk", "card", "ucx", *_LIBRARIES),
    "DTK_VERSION_UNAVAILABLE": ("dtk",),
    "DTK_DIFFERS": _LIBRARIES,
    "LIBRARY_PATH_ORDER": _LIBRARIES,
    "RCCL_LIBRARY_NOT_FOUND": ("rccl",),
    "LIBRARY_NOT_LOADABLE": _LIBRARIES,
    "TORCH_FOR_OTHER_DTK": ("torch", "triton", "flash_attn"),
    "TORCH_NOT_HIP_BUILD": ("torch", "triton", "flash_attn"),
    "ROCM_WHEEL_ON_DCU": ("torch", "triton", "flash_attn"),
    "HIP_FAMILY_DIFFERS": ("torch", "hip"),
    "TRANSFORMERS_REFUSES_TORCH": ("transformers", "torch"),
    "TRITON_NOT_OF_DTK": ("triton",),
    "PYTHON_MISSING": ("python", *COMPARED_PACKAGES),
    "PYTHON_TOO_OLD": ("python", *COMPARED_PACKAGES),
    "PYTHON_TAG_MISMATCH": ("python", "torch"),
    "STACK_MISSING": COMPARED_PACKAGES,
}
#: fields whose differences have a cure of their own
CURES: Mapping[str, str] = {
    "iommu": "where transfers between cards or nodes are slow or hang there: boot it with iommu=pt, as the others",
    "numa_balancing": "sysctl kernel.numa_balancing=0 on all nodes; balancing moves memory away from its card",
}
#: variables whose values belong to one node
_OWN = (
    "IFNAME",
    "HCA",
    "PATH",
    "VISIBLE_DEVICES",
    "TOPO_FILE",
    "NET_PLANE",
    "NET_DEVICES",
    "ROOT",
    "NUM_THREADS",
    "PRELOAD",
)


def find_differences(
    reports: Sequence[NodeReport], wanted: Wanted, earlier: Sequence[Finding]
) -> list[Finding]:
    """Findings of all comparisons that ``earlier`` ones do not explain."""
    found: list[Finding] = []
    for field in FIELDS:
        if field.code:
            found += _tell(compare(field, reports), reports, [*earlier, *found])
    found += _environments(reports)
    found += _files(reports)
    found += _clocks(reports)
    return found + _unverified(reports, [*earlier, *found])


def _explained(host: str, key: str, findings: Sequence[Finding]) -> bool:
    return any(host in finding.hosts and key in EXPLAINED.get(finding.code, ()) for finding in findings)


def _tell(result: Comparison, reports: Sequence[NodeReport], earlier: Sequence[Finding]) -> list[Finding]:
    others = [
        index for index in result.others if not _explained(reports[index].host, result.field.key, earlier)
    ]
    if not others:
        return []
    hosts = [reports[index].host for index in others]
    parts = ", ".join(
        f"{reports[index].host} has {_with_path(result, reports, index)}" for index in others[:8]
    )
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""
    text = f"{result.field.label} is {result.majority} on {_name_holders(result, reports)}, but {parts}{more}"
    cure = CURES.get(result.field.key, "")
    return [make_finding(result.field.code, hosts, text, level=result.field.level, cure=cure)]


def _name_holders(result: Comparison, reports: Sequence[NodeReport]) -> str:
    """Who has the majority's value: of two halves none is the majority, so its nodes are named."""
    holders = [
        report.host
        for report, value in zip(reports, result.values, strict=True)
        if value == result.majority and value is not None
    ]
    known = sum(value is not None for value in result.values)
    return "most nodes" if 2 * len(holders) > known else fold_names(holders)


def _with_path(result: Comparison, reports: Sequence[NodeReport], index: int) -> str:
    """The value, and for a library the file that has it: the one in memory, else the one that would be loaded."""
    value, report = str(result.values[index]), reports[index]
    library = report.libraries.get(result.field.key)
    path = library.path if library else None
    if result.field.key == "rccl" and report.torch.loaded_nccl:
        path = report.torch.loaded_path
    return f"{value} ({path})" if path else value


def _environments(reports: Sequence[NodeReport]) -> list[Finding]:
    """Variables of RCCL, HSA and the rest that should be the same: a missing one counts as what DCU nodes get."""
    reports = [report for report in reports if report.variables_known]
    names = sorted({name for report in reports for name in report.variables})
    findings: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in names:
        if name.endswith(_OWN) or name in ("LD_LIBRARY_PATH", "PYTHONPATH"):
            continue

        def value(report: NodeReport, name: str = name) -> str:
            default = DCU_DEFAULTS.get(name, "unset") if report.is_dcu else "unset"
            return report.variables.get(name, default)

        result = compare(Field(name, name, value), reports)
        if result.state != SAME:
            hosts = tuple(reports[index].host for index in result.others)
            values = ", ".join(sorted({str(result.values[index]) for index in result.others}))
            usual = _name_holders(result, reports)
            findings[hosts].append(f"{name} is {result.majority} on {usual}, {values} there")
    return [
        make_finding("ENVIRONMENT_DIFFERS", hosts, f"{', '.join(hosts)}: {'; '.join(texts)}")
        for hosts, texts in findings.items()
    ]


def _files(reports: Sequence[NodeReport]) -> list[Finding]:
    """Script, configuration, model and data have the same content on all nodes that have them."""
    found = []
    for path in sorted({path for report in reports for path in report.digests}):
        result = compare(Field(path, path, lambda report, path=path: report.digests.get(path)), reports)  # type: ignore[misc]
        hosts = [reports[index].host for index in result.others]
        if hosts:
            usual, first = _name_holders(result, reports), result.values[result.others[0]]
            text = f"{path} on {fold_names(hosts)} is not what {usual} {'have' if usual == 'most nodes' else 'has'}"
            what = _tell_files(str(first), str(result.majority))
            found.append(make_finding("FILES_DIFFER", hosts, f"{text}: {what}" if what else text))
    return found


def _tell_files(here: str, usual: str) -> str:
    """In what a folder, or a large file, is another; nothing where contents alone differ."""
    if " | " not in here or " | " not in usual:
        return f"{here}, not {usual}" if here.endswith(" bytes") and usual.endswith(" bytes") else ""
    found, wanted = (dict(line.rsplit(" | ", 1) for line in text.split("\n")) for text in (here, usual))
    parts = []
    for name in sorted({*found, *wanted}):
        if name not in found or name not in wanted:
            parts.append(f"{name} is {'missing' if name in wanted else 'there alone'}")
        elif found[name] != wanted[name]:
            sizes = found[name].endswith(" bytes") and wanted[name].endswith(" bytes")
            parts.append(
                f"{name} has {found[name]}, not {wanted[name]}" if sizes else f"{name} has another content"
            )
    more = f" and {len(parts) - MAX_FILES} more" if len(parts) > MAX_FILES else ""
    return ", ".join(parts[:MAX_FILES]) + more


def _clocks(reports: Sequence[NodeReport]) -> list[Finding]:
    """No node's clock is far from the others'."""
    offsets = sorted(
        report.system.clock_offset_s for report in reports if report.system.clock_offset_s is not None
    )
    if len(offsets) < 2:
        return []
    # of two nodes nobody knows which is wrong: then the head's clock decides
    middle = offsets[len(offsets) // 2] if len(offsets) > 2 else min(offsets, key=abs)
    found = []
    for report in reports:
        offset = report.system.clock_offset_s
        if offset is None or abs(offset - middle) <= CLOCK_LIMIT_S + report.system.clock_margin_s:
            continue
        way = "ahead" if offset > middle else "behind"
        text = f"{report.host}: its clock is {abs(offset - middle):.1f} s {way}"
        found.append(make_finding("CLOCK_OFF", report.host, text))
    return found


def _unverified(reports: Sequence[NodeReport], earlier: Sequence[Finding]) -> list[Finding]:
    """What is known on some nodes and not on others; hosts with an error of their own have something better to do."""
    ill = {host for finding in earlier if finding.level == "error" for host in finding.hosts}
    by_hosts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for field in FIELDS:
        result = compare(field, reports)
        if result.state in (SAME, ABSENT) or not field.code:
            continue
        hosts = tuple(
            reports[index].host
            for index in result.unknown
            if reports[index].host not in ill and not _explained(reports[index].host, field.key, earlier)
        )
        if hosts:
            by_hosts[hosts].append(field.label)
    return [
        make_finding("UNVERIFIED", hosts, f"{', '.join(hosts)}: unknown there: {', '.join(labels)}")
        for hosts, labels in by_hosts.items()
    ]
