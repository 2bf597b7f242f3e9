"""NodeReport: what one node's probe saw, as a record. Made from the agent's ``report`` message; runs on the head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


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
    """

    host: str
    hostname: str = ""
    agent_python: str = ""
    python: str | None = None
    python_version: str | None = None
    python_error: str = ""
    packages: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    card_kind: str | None = None
    card_count: int | None = None
    visible_cards: tuple[str, ...] | None = None
    visibility: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
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
    unknown: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

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
    )
