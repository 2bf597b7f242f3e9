"""Parts of a NodeReport: driver, DTK, libraries, cards, system, torch. Made from an agent's message; runs on the head.

A field that the node did not tell is None: unknown, never a default that could be taken for an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from launcher.preflight.version import format_hip_version, format_library_version

Message = Mapping[str, Any]


def empty() -> Mapping[str, Any]:
    """A mapping without anything, as a field's default."""
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Driver:
    """The kernel's part.

    Attributes:
        module: hycu, hydcu, amdgpu or nvidia; None where none is loaded.
        loaded: whether it is; None: unknown.
        nodes: device file -> ``ok``, ``denied`` or ``missing``.
        hyhal: folder of the driver's user part; ``hyhal_libraries``: whether it has any, None: unknown.
        pci_cards: DCUs on the bus, driver or not.
    """

    module: str | None = None
    version: str | None = None
    loaded: bool | None = None
    nodes: Mapping[str, str] = field(default_factory=empty)
    hyhal: str | None = None
    hyhal_known: bool = False
    hyhal_libraries: bool | None = None
    pci_cards: int | None = None


@dataclass(frozen=True, slots=True)
class Dtk:
    """The DTK of the ranks' environment.

    Attributes:
        root: its folder, as ``named_by`` (a variable or program) says.
        version: as its own file says.
        variables: all that name a root; ``reals``: where each of them leads.
        others: DTKs that are installed in usual places.
        installed_at: seconds since the epoch.
    """

    root: str | None = None
    known: bool = False
    named_by: str | None = None
    real: str | None = None
    exists: bool | None = None
    version: str | None = None
    variables: Mapping[str, str] = field(default_factory=empty)
    reals: Mapping[str, str] = field(default_factory=empty)
    others: tuple[str, ...] = ()
    installed_at: float | None = None

    @property
    def is_dtk(self) -> bool:
        """Whether there is a root, and it is no plain ROCm, which the same variables name."""
        names = (self.named_by or "", self.root or "", self.real or "")
        return self.root is not None and any("dtk" in name.lower() for name in names)


@dataclass(frozen=True, slots=True)
class Library:
    """A library that a rank would load: file, version, or the loader's error."""

    path: str | None = None
    version: str | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Card:
    """One card; all but its number may be unknown."""

    index: int
    model: str | None = None
    gfx: str | None = None
    memory_mib: int | None = None
    used_percent: float | None = None
    busy_percent: float | None = None
    numa: int | None = None
    pci: str | None = None
    vbios: str | None = None


@dataclass(frozen=True, slots=True)
class System:
    """Kernel, limits and disks; sizes in bytes.

    Attributes:
        memlock: the limit; None where there is none, if ``memlock_known``.
        clock_offset_s: the node's clock minus the head's.
        clock_margin_s: how far that may be off.
    """

    kernel: str | None = None
    os: str | None = None
    glibc: str | None = None
    memlock: int | None = None
    memlock_known: bool = False
    shm: int | None = None
    free_run_dir: int | None = None
    free_cache: int | None = None
    cache_dir: str = ""
    iommu_passthrough: bool | None = None
    numa_balancing: str | None = None
    container: bool | None = None
    groups: tuple[int, ...] = ()
    user: int | None = None
    clock_offset_s: float | None = None
    clock_margin_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Torch:
    """What a process that imported torch said; from torch's files alone where none did.

    Attributes:
        version: ``torch.__version__``.
        compiled_nccl: the RCCL or NCCL that torch was compiled against; ``loaded_nccl`` the one in its memory.
        operations: card number -> empty, or what went wrong in a small operation.
        error: why there is nothing more.
        checked: a process tried to import it; ``imported``: it could.
    """

    version: str | None = None
    hip: str | None = None
    cuda: str | None = None
    file_known: bool = False
    checked: bool = False
    imported: bool = False
    error: str = ""
    available: bool | None = None
    device_count: int | None = None
    device_names: tuple[str, ...] = ()
    archs: tuple[str, ...] | None = None
    card_archs: tuple[str, ...] = ()
    compiled_nccl: str | None = None
    loaded_nccl: str | None = None
    loaded_path: str | None = None
    operations: Mapping[str, str] = field(default_factory=empty)
    seconds: float | None = None


def read_driver(message: Message) -> Driver:
    """``driver`` of a message; the version that hy-smi tells stands in where the kernel's is missing."""
    found = message.get("driver")
    told = (message.get("cards") or {}).get("driver")
    if not isinstance(found, Mapping):
        return Driver(version=told)
    return Driver(
        module=found.get("module"),
        version=found.get("version") or told,
        loaded=found.get("loaded"),
        nodes=MappingProxyType(dict(found.get("nodes") or {})),
        hyhal=found.get("hyhal"),
        hyhal_known="hyhal" in found,
        hyhal_libraries=found.get("hyhal_libraries"),
        pci_cards=found.get("pci_cards"),
    )


def read_dtk(message: Message) -> Dtk:
    """``dtk`` of a message."""
    found = message.get("dtk")
    if not isinstance(found, Mapping):
        return Dtk()
    return Dtk(
        root=found.get("root"),
        known=True,
        named_by=found.get("named_by"),
        real=found.get("real"),
        exists=found.get("exists"),
        version=found.get("version"),
        variables=MappingProxyType(dict(found.get("variables") or {})),
        reals=MappingProxyType(dict(found.get("reals") or {})),
        others=tuple(found.get("others") or ()),
        installed_at=found.get("installed_at"),
    )


def read_libraries(message: Message) -> Mapping[str, Library]:
    """``libraries`` of a message, their numbers as versions."""
    formats = {"rccl": format_library_version, "nccl": format_library_version, "hip": format_hip_version}
    found = {}
    for kind, held in (message.get("libraries") or {}).items():
        code = held.get("code")
        version = formats[kind](code) if isinstance(code, int) and kind in formats else None
        version = held.get("text") or version
        found[kind] = Library(held.get("path"), version, str(held.get("error") or ""))
    return MappingProxyType(found)


def read_cards(message: Message) -> tuple[Card, ...]:
    """``cards.list`` of a message."""
    names = ("model", "gfx", "memory_mib", "used_percent", "busy_percent", "numa", "pci", "vbios")
    listed = (message.get("cards") or {}).get("list") or ()
    return tuple(Card(card["index"], **{name: card.get(name) for name in names}) for card in listed)


def read_system(message: Message) -> System:
    """``system`` and ``clock`` of a message."""
    found = message.get("system") or {}
    names = set(System.__dataclass_fields__) - {"groups", "clock_offset_s", "clock_margin_s"}
    clock = message.get("clock") or {}
    return System(
        **{name: found[name] for name in names if name in found},
        groups=tuple(found.get("groups") or ()),
        clock_offset_s=clock.get("offset_s"),
        clock_margin_s=clock.get("margin_s") or 0.0,
    )


def read_torch(message: Message) -> Torch:
    """What torch's files say, and ``torch`` of a message where a process was asked."""
    found = (message.get("python") or {}).get("torch_file") or {}
    on_disk = Torch(found.get("version"), found.get("hip"), found.get("cuda"), file_known=bool(found))
    told = message.get("torch")
    return read_told_torch(told, on_disk) if isinstance(told, Mapping) else on_disk


def read_told_torch(told: Mapping[str, Any], on_disk: Torch) -> Torch:
    """What a process that tried to import torch said of it; what torch's files say where it said nothing."""
    names = ("error", "available", "device_count", "compiled_nccl", "loaded_nccl", "loaded_path", "seconds")
    values: dict[str, Any] = {name: told[name] for name in names if name in told}
    archs = told.get("archs")
    return Torch(
        version=told.get("version", on_disk.version),
        hip=told.get("hip", on_disk.hip),
        cuda=told.get("cuda", on_disk.cuda),
        file_known=on_disk.file_known or "version" in told,
        checked=not told.get("is_incomplete"),
        imported="version" in told,
        archs=None if archs is None else tuple(archs),
        device_names=tuple(told.get("device_names") or ()),
        card_archs=tuple(told.get("card_archs") or ()),
        operations=MappingProxyType(dict(told.get("operations") or {})),
        **values,
    )
