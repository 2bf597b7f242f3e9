"""Rules on network adapters, limits and disks. Pure; runs on the head."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport

GIB = 1 << 30
LOOPBACK = {"127.0.0.1", "::1"}
MIN_MEMLOCK = 4 * GIB
MIN_SHM = GIB // 2
MIN_RUN_DIR, MIN_CACHE = GIB, GIB // 4


def hosts_distinct(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """No machine stands in the list under two names; containers of one machine differ by port."""
    found = []
    first: dict[tuple[str, int | None, frozenset[str]], str] = {}
    for report, host in zip(reports, wanted.hosts, strict=True):
        addresses = frozenset(address for _, address in report.interfaces) - LOOPBACK
        if not report.hostname or not addresses:
            continue
        other = first.setdefault((report.hostname, host.port, addresses), report.host)
        if other != report.host:
            text = f"{other} and {report.host} are one machine: {report.hostname} ({', '.join(sorted(addresses))})"
            found.append(make_finding("SAME_MACHINE_TWICE", (other, report.host), text))
    return found


def interfaces_exist(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A NIC named for a host is there."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        names = {name for name, _ in report.interfaces}
        for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
            value = _value_of(variable, report, host)
            if not value or value.startswith("^") or not names:
                continue
            for wish in value.lstrip("=").split(","):
                exact = value.startswith("=") or variable == "GLOO_SOCKET_IFNAME"
                if wish not in names if exact else not any(name.startswith(wish) for name in names):
                    text = f"{report.host} has no interface {wish} ({variable}); it has {', '.join(sorted(names))}"
                    cure = f"correct env.{variable} at {host.source}" if variable in host.env else ""
                    found.append(make_finding("INTERFACE_MISSING", report.host, text, cure=cure))
    return found


def _value_of(variable: str, report: NodeReport, host: Host) -> str:
    return host.env.get(variable, "") or report.variables.get(variable, "")


def adapters_exist(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """An RDMA adapter named for a host is there and up; on a node without a card nothing reads its name."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        value = _value_of("NCCL_IB_HCA", report, host)
        off = _value_of("NCCL_IB_DISABLE", report, host) == "1" or report.card_count == 0
        if not value or value.startswith("^") or report.hcas is None or off:
            continue
        wishes = [item.partition(":")[0] for item in value.lstrip("=").split(",") if item]
        exact = value.startswith("=")
        missing = [
            wish
            for wish in wishes
            if not any(name == wish if exact else name.startswith(wish) for name in report.hcas)
        ]
        down = [name for name in wishes if report.hcas.get(name) not in (None, "active", "unknown")]
        if missing:
            has = ", ".join(sorted(report.hcas)) or "none"
            text = f"{report.host} has no adapter {', '.join(missing)} (NCCL_IB_HCA); it has {has}"
            cure = f"correct env.NCCL_IB_HCA at {host.source}" if "NCCL_IB_HCA" in host.env else ""
            found.append(make_finding("HCA_MISSING", report.host, text, cure=cure))
        if down:
            text = f"{report.host}: adapter {', '.join(down)} of NCCL_IB_HCA is not active"
            found.append(make_finding("HCA_DOWN", report.host, text))
    return found


def ucx_there(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Where RCCL is told to go by UCX, there is one."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        if _value_of("NCCL_PLUGIN_P2P", report, host) != "ucx" or "libraries" in report.unknown:
            continue
        library = report.libraries.get("ucx")
        if library is None or not library.version:
            why = library.error if library and library.error else "no libucp is found"
            text = f"{report.host}: NCCL_PLUGIN_P2P=ucx, and {why}"
            found.append(make_finding("UCX_NOT_AVAILABLE", report.host, text))
    return found


def limits_suffice(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Locked memory for RDMA and shared memory for the ranks of one node."""
    found = []
    for report in reports:
        system = report.system
        limited = system.memlock_known and system.memlock is not None and system.memlock < MIN_MEMLOCK
        if report.hcas and limited and system.user != 0:
            text = f"{report.host}: locked memory is limited to {_size(system.memlock)}, which RDMA outgrows"
            found.append(make_finding("MEMLOCK_LIMITED", report.host, text))
        if report.card_count and system.shm is not None and system.shm < MIN_SHM:
            text = f"{report.host}: /dev/shm has {_size(system.shm)}, ranks of one node share memory there"
            found.append(make_finding("SHM_SMALL", report.host, text))
    return found


def disks_have_room(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Run folder and cache are not about to be full."""
    found = []
    for report in reports:
        system = report.system
        low = [
            f"{what} has {_size(free)} left"
            for what, free, least in (
                ("the disk of the run folder", system.free_run_dir, MIN_RUN_DIR),
                (f"the disk of {system.cache_dir or 'the cache'}", system.free_cache, MIN_CACHE),
            )
            if free is not None and free < least
        ]
        if low:
            text = f"{report.host}: {' and '.join(low)}"
            found.append(make_finding("DISK_NEARLY_FULL", report.host, text))
    return found


def _size(count: int | None) -> str:
    value = float(count or 0)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.4g} {unit}"
        value /= 1024
    return ""
