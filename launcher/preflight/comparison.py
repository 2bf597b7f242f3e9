"""The same thing on all nodes? Same, different or unverified: an unknown value never counts as equal. Pure; on the head.

``FIELDS`` is what is compared, in the order of the table that ``dcu-launch check`` shows; each knows whether a
difference is hard, and under which code it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from launcher.preflight.report import NodeReport

SAME, DIFFERENT, UNVERIFIED, ABSENT = "same", "different", "unverified", "absent"
#: packages whose versions are compared; of them torch alone is hard
COMPARED_PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "deepspeed",
    "datasets",
    "triton",
    "flash_attn",
)


@dataclass(frozen=True, slots=True)
class Field:
    """Something of a node that is compared.

    Attributes:
        key: its name in JSON; ``label`` in the table.
        code: of a difference; empty where one is shown and no finding.
        level: of a difference; empty: the code's usual one.
        optional: a package that need not be there: unknown on all nodes means absent.
    """

    key: str
    label: str
    value: Callable[[NodeReport], str | None]
    code: str = ""
    level: str = ""
    optional: bool = True


@dataclass(frozen=True, slots=True)
class Comparison:
    """One field over all nodes.

    Attributes:
        state: same, different, unverified (unknown somewhere), or absent (unknown everywhere, and may be).
        majority: the value that most nodes have; the first in order of nodes among equals.
        values: of each node, in order.
    """

    field: Field
    state: str
    majority: str | None
    values: tuple[str | None, ...]

    @property
    def others(self) -> tuple[int, ...]:
        """Nodes that have another value than the majority."""
        return tuple(i for i, value in enumerate(self.values) if value is not None and value != self.majority)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Nodes whose value is unknown."""
        return tuple(i for i, value in enumerate(self.values) if value is None)


def compare(field: Field, reports: Sequence[NodeReport]) -> Comparison:
    """Compare one field over all nodes."""
    values = tuple(field.value(report) for report in reports)
    known = Counter(value for value in values if value is not None)
    if not known:
        return Comparison(field, ABSENT if field.optional else UNVERIFIED, None, values)
    majority = max(known, key=lambda value: (known[value], -values.index(value)))
    unverified = UNVERIFIED if None in values else SAME
    return Comparison(field, DIFFERENT if len(known) > 1 else unverified, majority, values)


def _library(kind: str) -> Callable[[NodeReport], str | None]:
    def value(report: NodeReport) -> str | None:
        if kind == "rccl" and report.torch.loaded_nccl:
            return report.torch.loaded_nccl
        library = report.libraries.get(kind)
        return library.version if library else None

    return value


def _package(name: str) -> Callable[[NodeReport], str | None]:
    return lambda report: report.packages.get(name)


def _cards(report: NodeReport) -> str | None:
    if report.card_count is None:
        return None
    if not report.card_count:
        return "none"
    kinds = Counter(
        " ".join(filter(None, (card.model, card.gfx, _memory(card.memory_mib)))) for card in report.cards
    )
    return " + ".join(sorted(kind for kind in kinds if kind)) or f"of kind {report.card_kind}"


def _vbios(report: NodeReport) -> str | None:
    """Compared only with what the same tool says elsewhere, so as a text."""
    return " + ".join(sorted({card.vbios for card in report.cards if card.vbios})) or None


def _memory(mib: int | None) -> str:
    return f"{mib / 1024:.0f} GiB" if mib else ""


def _count(report: NodeReport) -> str | None:
    return None if report.card_count is None else str(report.usable_cards)


def _adapters(report: NodeReport) -> str | None:
    if report.hcas is None:
        return None
    return ", ".join(sorted(report.hcas)) or "none"


def _driver(report: NodeReport) -> str | None:
    return report.driver.version


def _iommu(report: NodeReport) -> str | None:
    """Of nodes with cards alone: elsewhere it is nobody's concern."""
    state = report.system.iommu_passthrough
    return None if state is None or not report.card_count else "passthrough" if state else "no passthrough"


def _numa_balancing(report: NodeReport) -> str | None:
    state = report.system.numa_balancing
    return None if state is None or not report.card_count else {"0": "off", "1": "on"}.get(state, state)


FIELDS = (
    Field("os", "OS", lambda report: report.system.os, "SYSTEM_DIFFERS"),
    Field("kernel", "kernel", lambda report: report.system.kernel, "SYSTEM_DIFFERS"),
    Field("glibc", "glibc", lambda report: report.system.glibc, "SYSTEM_DIFFERS"),
    Field("iommu", "IOMMU", _iommu, "SYSTEM_DIFFERS"),
    Field("numa_balancing", "NUMA balance", _numa_balancing, "SYSTEM_DIFFERS"),
    Field("driver", "driver", _driver, "DRIVER_DIFFERS"),
    Field("dtk", "DTK", lambda report: report.dtk.version, "DTK_DIFFERS"),
    Field("hip", "HIP runtime", _library("hip"), "HIP_DIFFERS"),
    Field("rccl", "RCCL", _library("rccl"), "RCCL_DIFFERS"),
    Field("nccl", "NCCL", _library("nccl"), "RCCL_DIFFERS"),
    Field("ucx", "UCX", _library("ucx"), "VERSIONS_DIFFER"),
    Field("card", "card", _cards, "CARDS_DIFFER", optional=False),
    Field("cards", "cards", _count, optional=False),
    Field("vbios", "VBIOS", _vbios, "CARDS_DIFFER"),
    Field("adapters", "RDMA adapters", _adapters),
    Field("python", "Python", lambda report: report.python_version, "VERSIONS_DIFFER", optional=False),
    *(
        Field(name, name, _package(name), "VERSIONS_DIFFER", "error" if name == "torch" else "warning")
        for name in COMPARED_PACKAGES
    ),
)
