"""NodeReport: what one node's probe saw, as a record. Made from the agent's ``report`` message; runs on the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from launcher.preflight import facts
from launcher.preflight.facts import Card, Driver, Dtk, Library, System, Torch, empty


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What is known of a node. None means unknown, and unknown never counts as equal.

    Attributes:
        python: interpreter that ranks will get.
        python_error: why there is none.
        packages: versions of the training stack by distribution name, as the names of their metadata folders say.
        card_kind: ``dcu``, ``rocm``, ``cuda`` or ``cpu``.
        card_count: cards in the node.
        visible_cards: card numbers that the environment leaves visible; None: all.
        visibility: the variables that say so.
        interfaces: (name, address) pairs, loopback last.
        session_address: the node's address by which the head came in.
        missing: paths the run needs and the node lacks.
        sees_run_dir: whether the node sees the head's run folder.
        run_dir_error: why a node that does not see it cannot make one of its own at the same path; empty when it can.
        topology: NUMA nodes, cards and adapters, as ``launcher.node.numa`` reads them; only where it was asked for.
        setup: set-up steps that were run.
        orphans: pids of an earlier run that were ended before this one.
        unknown: what could not be found out, with the reason.
        wheel_tags: of torch's wheel, ``cp310-cp310-linux_x86_64``.
        variables: of the ranks' environment, those that decide how they talk to cards and each other.
        holders: kind of library (rccl, hip) -> folders of LD_LIBRARY_PATH that hold one, in its order.
        card_counts: cards by who was asked: kernel, smi, rocminfo.
        card_tool: whether hy-smi, or an older DTK's rocm-smi, is installed; None: unknown.
        card_tool_error: why hy-smi has no answer, where it is installed.
        processes: who uses cards; None: unknown.
        caches: folder of compiled kernels -> when it was last written to.
        digests: path -> a text that is equal where the content is.
        hcas: RDMA adapter -> state of its port.
        link_speeds: interface -> Mbit/s, where its driver tells it.
    """

    host: str
    hostname: str = ""
    agent_python: str = ""
    python: str | None = None
    python_version: str | None = None
    python_error: str = ""
    packages: Mapping[str, str] = field(default_factory=empty)
    card_kind: str | None = None
    card_count: int | None = None
    visible_cards: tuple[str, ...] | None = None
    visibility: Mapping[str, str] = field(default_factory=empty)
    interfaces: tuple[tuple[str, str], ...] = ()
    session_address: str | None = None
    cpus: int | None = None
    workdir_exists: bool | None = None
    missing: tuple[str, ...] = ()
    sees_run_dir: bool | None = None
    run_dir_error: str = ""
    topology: Mapping[str, Any] | None = None
    setup: tuple[str, ...] = ()
    orphans: tuple[int, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=empty)
    wheel_tags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=empty)
    variables_known: bool = False
    driver: Driver = field(default_factory=Driver)
    dtk: Dtk = field(default_factory=Dtk)
    libraries: Mapping[str, Library] = field(default_factory=empty)
    holders: Mapping[str, tuple[str, ...]] = field(default_factory=empty)
    cards: tuple[Card, ...] = ()
    card_counts: Mapping[str, int] = field(default_factory=empty)
    card_tool: bool | None = None
    card_tool_error: str = ""
    processes: tuple[Mapping[str, Any], ...] | None = None
    caches: Mapping[str, float] = field(default_factory=empty)
    digests: Mapping[str, str] = field(default_factory=empty)
    hcas: Mapping[str, str] | None = None
    link_speeds: Mapping[str, int] = field(default_factory=empty)
    system: System = field(default_factory=System)
    torch: Torch = field(default_factory=Torch)
    probe_s: float | None = None

    @property
    def is_dcu(self) -> bool:
        """Whether this is meant to be a DCU node, by whatever of it is there."""
        return (
            self.card_kind == "dcu"
            or self.dtk.is_dtk
            or self.driver.hyhal is not None
            or bool(self.driver.pci_cards)
            or self.driver.module in ("hycu", "hydcu")
        )

    @property
    def usable_cards(self) -> int | None:
        """Cards that ranks can use; None when unknown."""
        if self.visible_cards is not None and self.card_count is not None:
            return min(len(self.visible_cards), self.card_count) if self.card_count else 0
        return self.card_count


def read_report(host: str, message: Mapping[str, Any]) -> NodeReport:
    """The record of one agent's ``report`` message; fields that are absent stay unknown."""
    python = message.get("python") or {}
    cards = message.get("cards") or {}
    visible = cards.get("visible")
    return NodeReport(
        host=host,
        hostname=str(message.get("hostname", "")),
        agent_python=str(message.get("agent_python", "")),
        python=python.get("path"),
        python_version=python.get("version"),
        python_error=str(python.get("error", "")),
        packages=MappingProxyType(dict(python.get("packages", {}))),
        card_kind=cards.get("kind"),
        card_count=cards.get("count"),
        visible_cards=None if visible is None else tuple(visible),
        visibility=MappingProxyType(dict(message.get("visibility", {}))),
        interfaces=tuple((entry["name"], entry["address"]) for entry in message.get("interfaces", ())),
        session_address=message.get("session_address"),
        cpus=message.get("cpus"),
        workdir_exists=message.get("workdir"),
        missing=tuple(message.get("missing", ())),
        sees_run_dir=message.get("sees_run_dir"),
        run_dir_error=str(message.get("run_dir_error", "")),
        topology=message.get("topology"),
        setup=tuple(message.get("setup", ())),
        orphans=tuple(message.get("orphans", ())),
        unknown=MappingProxyType(dict(message.get("unknown", {}))),
        **_read_stack(message),
    )


def _read_stack(message: Mapping[str, Any]) -> dict[str, Any]:
    """Driver, DTK, libraries, cards and the rest of what decides whether ranks will work together."""
    cards = message.get("cards") or {}
    processes, hcas = cards.get("processes"), message.get("hcas")
    holders = message.get("holders") or {}
    return {
        "wheel_tags": tuple((message.get("python") or {}).get("wheel_tags") or ()),
        "variables": MappingProxyType(dict(message.get("variables") or {})),
        "variables_known": "variables" in message,
        "driver": facts.read_driver(message),
        "dtk": facts.read_dtk(message),
        "libraries": facts.read_libraries(message),
        "holders": MappingProxyType({kind: tuple(folders) for kind, folders in holders.items()}),
        "cards": facts.read_cards(message),
        "card_counts": MappingProxyType(dict(cards.get("counts") or {})),
        "card_tool": "table" in cards["asked"] if isinstance(cards.get("asked"), Mapping) else None,
        "card_tool_error": str((cards.get("asked") or {}).get("table") or ""),
        "processes": None if processes is None else tuple(processes),
        "caches": MappingProxyType(dict(message.get("caches") or {})),
        "digests": MappingProxyType(dict(message.get("digests") or {})),
        "hcas": None if hcas is None else MappingProxyType({hca["name"]: hca["state"] for hca in hcas}),
        "link_speeds": MappingProxyType(
            {name: link["speed"] for name, link in (message.get("links") or {}).items() if link.get("speed")}
        ),
        "system": facts.read_system(message),
        "torch": facts.read_torch(message),
        "probe_s": message.get("probe_s"),
    }
