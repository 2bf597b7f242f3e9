"""Hosts that could not be reached: what each failed with in, one error that lists them all out. Runs on the head."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.base.errors import UnreachableError
from launcher.hosts.target import fold_names

#: so many hosts that failed alike are still listed one by one
LISTED_ONE_BY_ONE = 8
MAX_HINTS = 4


class TryAgainError(UnreachableError):
    """The server dropped the connection before it was used: it is busy (MaxStartups), or just coming up."""


class UnknownHostKeyError(UnreachableError):
    """The host's key is in no known_hosts file.

    Args:
        where: the host, as messages name it.
        shown: kind and fingerprint of the key.
        scan: words for ssh-keyscan; empty when it cannot get there.
        by_hand: the ssh command that asks about the key.
    """

    def __init__(self, where: str, shown: str, scan: tuple[str, int] | None, by_hand: str) -> None:
        hint = f"compare the fingerprint, then say yes to: {by_hand}; or add --accept-new-host-keys"
        super().__init__(f"{where}: its host key is unknown{f' ({shown})' if shown else ''}", hint)
        self.scan = scan


def combine(errors: Sequence[UnreachableError]) -> UnreachableError:
    """One error for all hosts that failed; what is the same for many hosts is said once."""
    unknown = [error for error in errors if isinstance(error, UnknownHostKeyError)]
    hints = _scan_hints(unknown) if len(unknown) > 1 else []
    scanned = {error for error in unknown if hints and error.scan is not None}
    hints += [error.hint for error in errors if error.hint and error not in scanned]
    distinct = list(dict.fromkeys(hints))
    shown = distinct[:MAX_HINTS]
    if len(distinct) > MAX_HINTS:
        shown.append(f"and {len(distinct) - MAX_HINTS} more like these")
    return UnreachableError("\n".join(_fold([error.message for error in errors])), "\n".join(shown))


def _scan_hints(unknown: Sequence[UnknownHostKeyError]) -> list[str]:
    ports: dict[int, list[str]] = {}
    for error in unknown:
        if error.scan is not None:
            ports.setdefault(error.scan[1], []).append(error.scan[0])
    return [
        f"ssh-keyscan {f'-p {port} ' if port != 22 else ''}{' '.join(names)} >> ~/.ssh/known_hosts "
        "after comparing the fingerprints, or add --accept-new-host-keys"
        for port, names in ports.items()
    ]


def _fold(messages: Sequence[str]) -> list[str]:
    """``node[01-64]: no answer`` instead of 64 lines."""
    alike: dict[str, list[str]] = {}
    for message in messages:
        name, _, reason = message.partition(": ")
        alike.setdefault(reason, []).append(name)
    lines: list[str] = []
    told: set[str] = set()
    for message in messages:
        reason = message.partition(": ")[2]
        names = alike[reason]
        if not reason or len(names) <= LISTED_ONE_BY_ONE:
            lines.append(message)
        elif reason not in told:
            told.add(reason)
            lines.append(f"{len(names)} hosts, {_short(names)}: {reason}")
    return lines


def _short(names: Sequence[str]) -> str:
    return fold_names(name.partition(" (")[0] for name in names)
