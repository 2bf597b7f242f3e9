"""Rules on the DTK that ranks would load and on what its libraries say. Pure; runs on the head."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport
from launcher.preflight.version import read_dtk

_NAMES = {"rccl": "librccl", "hip": "libgalaxyhip or libamdhip64"}


def dtk_set_up(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """A DCU node has a DTK in the ranks' environment, and only one."""
    found = []
    for report in reports:
        dtk = report.dtk
        if not report.is_dcu or not dtk.known:
            continue
        if dtk.root is None or dtk.exists is False:
            named = (
                f"{dtk.named_by} names {dtk.root}, which is not there" if dtk.root else "nothing names a DTK"
            )
            others = f"; installed: {', '.join(dtk.others)}" if dtk.others else ""
            cure = f"--setup {dtk.others[0]}/env.sh, or setup= on its hostfile line" if dtk.others else ""
            text = f"{report.host}: {named} in the environment of a non-interactive shell{others}"
            found.append(make_finding("DTK_NOT_SET_UP", report.host, text, cure=cure))
        elif read_dtk(dtk.version or "") is None:
            text = f"{report.host}: {dtk.root} (by {dtk.named_by}) has no file that tells its version"
            found.append(make_finding("DTK_VERSION_UNAVAILABLE", report.host, text))
        found += _one_root(report)
    return found


def _one_root(report: NodeReport) -> list[Finding]:
    dtk = report.dtk
    other = [f"{name}={dtk.variables[name]}" for name, real in sorted(dtk.reals.items()) if real != dtk.real]
    if not other or dtk.root is None:
        return []
    text = f"{report.host}: {dtk.named_by} says {dtk.root}, but {', '.join(other)}"
    return [make_finding("DTKROOT_MISMATCH", report.host, text)]


def libraries_of_dtk(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """RCCL and the HIP runtime come out of the DTK, and load."""
    found = []
    strays: list[tuple[NodeReport, str]] = []
    for report in reports:
        if not report.is_dcu or report.dtk.root is None or report.dtk.exists is False:
            continue
        for kind in ("rccl", "hip"):
            library = report.libraries.get(kind)
            if library is None:
                continue
            if library.path is None:
                missing = (
                    "cannot open shared object file" in library.error and "lib" in library.error.split(":")[0]
                )
                code = "RCCL_LIBRARY_NOT_FOUND" if missing and kind == "rccl" else "LIBRARY_NOT_LOADABLE"
                text = f"{report.host}: {_NAMES[kind]} does not load: {library.error}"
                found.append(make_finding(code, report.host, text))
            elif library.error:
                text = f"{report.host}: {library.path} loads, but tells no version: {library.error}"
                found.append(make_finding("LIBRARY_NOT_LOADABLE", report.host, text))
            if _is_stray(report, kind):
                strays.append((report, kind))
    hosts = {report.host for report, _ in strays}
    for host in dict.fromkeys(report.host for report, _ in strays):
        mine = [(report, kind) for report, kind in strays if report.host == host]
        what = " and ".join(_describe_stray(report, kind) for report, kind in mine)
        text = f"{host}: {what}, not of the DTK {mine[0][0].dtk.root}"
        # one RCCL of a site's own on every node may be meant; on some nodes only it never is
        level = "warning" if len(hosts) == len(reports) and len(reports) > 1 else ""
        found.append(make_finding("LIBRARY_PATH_ORDER", host, text, level=level))
    return found


def _is_stray(report: NodeReport, kind: str) -> bool:
    roots = [root.rstrip("/") + "/" for root in (report.dtk.root, report.dtk.real) if root]
    library = report.libraries.get(kind)
    if library is not None and library.path is not None:
        return not library.path.startswith(tuple(roots))
    folders = report.holders.get(kind, ())
    return bool(folders) and not (folders[0].rstrip("/") + "/").startswith(tuple(roots))


def _describe_stray(report: NodeReport, kind: str) -> str:
    library = report.libraries.get(kind)
    if library is None or library.path is None:
        return f"the first {_NAMES[kind]} of LD_LIBRARY_PATH lies in {report.holders[kind][0]}"
    version = f" ({library.version})" if library.version else ""
    return f"{library.path}{version} would be loaded"


def caches_fresh(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """No cache of compiled kernels is left over from before this DTK was installed."""
    found = []
    for report in reports:
        installed = report.dtk.installed_at
        old = sorted(path for path, time in report.caches.items() if installed and time < installed)
        if report.is_dcu and old:
            text = f"{report.host}: {', '.join(old)} was last written to before this DTK was installed"
            found.append(make_finding("STALE_CACHE", report.host, text))
    return found


def variables_sane(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Variables that are known to break DCU training are not set so."""
    found = []
    for report in reports:
        if not report.is_dcu:
            continue
        tensile = report.variables.get("ROCBLAS_TENSILE_LIBPATH")
        roots = tuple(f"{root.rstrip('/')}/" for root in (report.dtk.root, report.dtk.real) if root)
        if tensile and roots and not tensile.startswith(roots):
            text = f"{report.host}: ROCBLAS_TENSILE_LIBPATH={tensile} lies outside the DTK {report.dtk.root}"
            found.append(make_finding("TENSILE_PATH_STRANGE", report.host, text))
        if report.variables.get("HSA_FORCE_FINE_GRAIN_PCIE") == "0":
            text = f"{report.host}: HSA_FORCE_FINE_GRAIN_PCIE=0: RCCL can hang between cards"
            found.append(make_finding("FINE_GRAIN_OFF", report.host, text))
    return found
