"""Finding: something that will go wrong, or may; and what the run asks of nodes, which decides that. Runs on the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from launcher.base.variable import printable
from launcher.hosts.host import Host
from launcher.preflight.codes import CODES

LEVELS = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that will go wrong, or may.

    Attributes:
        level: ``error`` (no rank is started), ``warning`` or ``note``.
        code: its name in the docs and for ``--allow``.
        hosts: whom it concerns.
    """

    level: str
    code: str
    hosts: tuple[str, ...]
    message: str
    cure: str = ""

    def to_text(self, is_allowed: bool = False) -> str:
        """One or two lines for a person; an error that may pass is no error any more."""
        level = "allowed" if is_allowed and self.level == "error" else self.level
        text = f"{level} {self.code}: {self.message}"
        return f"{text}\n  cure: {self.cure}" if self.cure else text

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "level": self.level,
            "code": self.code,
            "hosts": list(self.hosts),
            "message": self.message,
            "cure": self.cure,
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the run asks of each node.

    Attributes:
        recipe: ranks run launcher.train, so its packages are needed.
        workdir: working folder of the ranks.
        config: the resolved recipe, as far as rules look at it.
        script: source text of the script that runs.
        ranks_per_host: ranks on hosts whose line has no slots.
        compat: compatibility tables of this site, merged over ours.
        torch_checked: reports hold what a process that imported torch said.
        is_open: nothing is named that is to run: what recipes need is then told of, and refuses nothing.
    """

    recipe: bool
    workdir: str
    hosts: Sequence[Host] = field(default_factory=tuple)
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    script: str = ""
    ranks_per_host: int | None = None
    compat: Sequence[Mapping[str, Any]] = ()
    torch_checked: bool = False
    is_open: bool = False


def make_finding(
    code: str, hosts: str | Sequence[str], message: str, *, level: str = "", cure: str = ""
) -> Finding:
    """A finding with the level and cure of its code, unless given.

    Raises:
        KeyError: the code is not in the table.
    """
    usual = CODES[code]
    names = (hosts,) if isinstance(hosts, str) else tuple(hosts)
    return Finding(level or usual.level, code, names, _visible(message), cure or usual.cure)


def _visible(message: str) -> str:
    """What programs on nodes have said may hold anything: lines stay lines, the rest of the control characters is shown."""
    return "\n".join(printable(line) for line in message.split("\n"))
