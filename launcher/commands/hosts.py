"""``dcu-launch hosts``: a hostfile as it is understood, one line a host or range of hosts. Contacts nobody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import click

from launcher.base.env import mask, printable
from launcher.base.errors import UsageError
from launcher.commands.options import HOST_OPTIONS, shared_options
from launcher.hosts.host import Host

EXAMPLE = """\
# A hostfile: one host a line, in the order of the node ranks; the first one is the master.
# [user@]host[:port], then key=value words in any order. Blank lines and comments are skipped.

node01 slots=8
node02 slots=8

# slots= is the number of ranks; without it one rank starts on each card of the node.
#   node03
# Another user, port and key than ssh would take:
#   alice@node04:2222 slots=8 key=~/.ssh/id_dcu
# Many hosts alike:
#   node[05-16] slots=8
# Only these cards, in order of local rank:
#   node17 devices=2,3
# Python of the ranks and set-up before they start (setup= may stand several times):
#   node18 slots=8 python=/opt/py310/bin/python setup=/opt/dtk/env.sh setup=module:mpi
# A variable for this host alone; NAME+= prepends to what the node has, NAME- takes it away:
#   node19 slots=8 env.NCCL_SOCKET_IFNAME=ib1 env.LD_LIBRARY_PATH+=/opt/rccl/lib env.http_proxy-
# The address by which the other nodes reach it in training, where it is not the usual one:
#   [fd00::17]:22 slots=8 addr=10.0.0.17
# This machine, without SSH:
#   localhost slots=2
"""
_HEAD = ("node", "host", "user", "port", "slots", "ranks", "settings")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@shared_options(HOST_OPTIONS)
@click.option("--example", is_flag=True, help="Print a commented hostfile to start from.")
@click.argument("file", required=False)
def hosts(hosts_file: str | None, ranks_per_host: int | None, example: bool, file: str | None) -> None:
    """Print how a hostfile is understood: node ranks, hosts, slots and global ranks."""
    if hosts_file and file:
        raise UsageError(f"two hostfiles: {hosts_file} and {file}")
    click.echo(show_hosts(hosts_file or file, example, ranks_per_host), nl=False)


def show_hosts(path: str | None, example: bool = False, ranks_per_host: int | None = None) -> str:
    """The table of a hostfile, or of this machine (None), or the example; raises HostfileError."""
    if example:
        return EXAMPLE
    from launcher.commands.request import read_hosts

    listed = read_hosts(path, ranks_per_host)
    slots = [host.slots or ranks_per_host for host in listed]
    firsts = _first_ranks(slots)
    rows: list[Sequence[str]] = [_HEAD]
    for first, after in _foldable(listed):
        last_rank = firsts[after]
        ranks = "?" if last_rank is None else _span(firsts[first] or 0, last_rank - 1)
        rows.append(_row(listed[first:after], first, slots[first], ranks))
    unknown = [host.name for host, number in zip(listed, slots, strict=True) if number is None]
    return "\n".join([*_align(rows), "", _summary(listed, slots, unknown)]) + "\n"


def _first_ranks(slots: Sequence[int | None]) -> list[int | None]:
    """First global rank of each host, and the world size behind the last; None after an unknown number of slots."""
    firsts: list[int | None] = [0]
    for number in slots:
        before = firsts[-1]
        firsts.append(None if before is None or number is None else before + number)
    return firsts


def _foldable(listed: Sequence[Host]) -> Iterator[tuple[int, int]]:
    """Index ranges of hosts that can stand in one row: a whole line whose names fold in their own order."""
    from launcher.hosts.target import expand_names, fold_names

    start = 0
    while start < len(listed):
        end = start + 1
        while end < len(listed) and listed[end].source == listed[start].source:
            end += 1
        names = [host.name for host in listed[start:end]]
        if len(names) > 1 and expand_names(fold_names(names)) == names:
            yield start, end
        else:
            yield from ((index, index + 1) for index in range(start, end))
        start = end


def _row(same: Sequence[Host], first: int, slots: int | None, ranks: str) -> tuple[str, ...]:
    from launcher.hosts.target import fold_names

    host = same[0]
    name = host.name if len(same) == 1 else fold_names(each.name for each in same)
    return (
        _span(first, first + len(same) - 1),
        name,
        host.user or "-",
        "none (local)" if host.is_local else str(host.port or "-"),
        "all cards" if slots is None else str(slots),
        ranks,
        " ".join(_settings(host)),
    )


def _settings(host: Host) -> Iterable[str]:
    if host.devices:
        yield f"devices={','.join(host.devices)}"
    for key, value in (("python", host.python), ("key", host.key), ("addr", host.address)):
        if value:
            yield f"{key}={printable(value)}"
    yield from (f"setup={printable(step)}" for step in host.setup)
    for name, value in host.env.items():
        shown = printable(mask(name.rstrip("+-"), value))
        yield f"env.{name}" if name.endswith("-") else f"env.{name}={shown}"


def _summary(listed: Sequence[Host], slots: Sequence[int | None], unknown: Sequence[str]) -> str:
    from launcher.hosts.target import fold_names

    num_hosts = f"{len(listed)} host{'s' if len(listed) > 1 else ''}"
    if unknown:
        return f"{num_hosts}; ranks as many as there are cards on {fold_names(unknown)}"
    num_ranks = sum(number or 0 for number in slots)
    return f"{num_hosts}, {num_ranks} rank{'s' if num_ranks > 1 else ''}"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _align(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
