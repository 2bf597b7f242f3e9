"""Rules on driver, device files, hyhal and cards of a DCU node. Pure; runs on the head."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.hosts.host import Host
from launcher.preflight.compat import judge_driver, merge_tables
from launcher.preflight.finding import Finding, Wanted, make_finding
from launcher.preflight.report import NodeReport
from launcher.preflight.version import compare_numbers, parse_driver, read_dtk, read_numbers

BUSY_PERCENT = 5.0


def driver_ready(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Driver loaded, device files there and open to this user, hyhal there."""
    found = []
    for report in reports:
        driver = report.driver
        if not report.is_dcu or driver.loaded is None:
            continue
        if not driver.loaded:
            cards = f"; {driver.pci_cards} DCUs are on the PCI bus" if driver.pci_cards else ""
            text = f"{report.host}: neither hycu nor hydcu is loaded{cards}"
            found.append(make_finding("HYCU_DRIVER_NOT_LOADED", report.host, text))
        else:
            found += _device_files(report)
        if not driver.version and driver.loaded:
            text = f"{report.host}: the driver {driver.module} tells no version"
            found.append(make_finding("DRIVER_VERSION_UNAVAILABLE", report.host, text))
        oldest = merge_tables(wanted.compat)["hyhal_from_dtk"]
        dtk = read_dtk(report.dtk.version or "") or oldest
        lacks = _lacking_hyhal(report)
        if lacks and read_numbers(dtk) >= read_numbers(oldest):
            text = f"{report.host}: {lacks}, which torch needs since DTK {oldest}"
            found.append(make_finding("HYHAL_MISSING", report.host, text))
    return found


def _lacking_hyhal(report: NodeReport) -> str:
    """What of the driver's user part is not there; nothing where all is, or where that is not known."""
    driver = report.driver
    if driver.hyhal_known and driver.hyhal is None:
        return "neither /opt/hyhal nor /usr/local/hyhal is there"
    if driver.hyhal and driver.hyhal_libraries is False:
        return f"{driver.hyhal} is there without its libraries (lib)"
    return ""


def _device_files(report: NodeReport) -> list[Finding]:
    nodes = report.driver.nodes
    kfd = [nodes[path] for path in ("/dev/kfd", "/dev/mkfd") if path in nodes]
    where = " in this container" if report.system.container else ""
    if kfd and set(kfd) == {"missing"}:
        text = f"{report.host}: the driver is loaded, but there is no /dev/kfd and no /dev/mkfd{where}"
        return [make_finding("HCU_DEVICE_NODE_MISSING", report.host, text)]
    denied = sorted(path for path, state in nodes.items() if state == "denied")
    if not denied:
        return []
    why = "" if 39 in report.system.groups else "; the user is not in group 39"
    text = f"{report.host}: this user may not open {', '.join(denied)}{why}"
    return [make_finding("DEVICE_NODE_DENIED", report.host, text)]


def driver_fits_dtk(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """The driver is one that the vendor's table allows for the DTK."""
    table = merge_tables(wanted.compat)
    found = []
    for report in reports:
        dtk, driver = read_dtk(report.dtk.version or ""), report.driver.version
        if not report.is_dcu or dtk is None or not driver:
            continue
        if dtk not in table["dtk"]:
            text = f"{report.host}: DTK {dtk} is not in the tables, so its driver was not checked"
            found.append(make_finding("DTK_NOT_IN_TABLE", report.host, text))
            continue
        verdict = judge_driver(table, driver, dtk)
        advice = f"; the vendor recommends {verdict.recommended}" if verdict.recommended else ""
        if verdict.word == "old":
            text = f"{report.host}: driver {driver} is older than {verdict.limit}, the oldest for DTK {dtk}{advice}"
            found.append(make_finding("DRIVER_TOO_OLD", report.host, text))
        elif verdict.word == "new":
            text = f"{report.host}: driver {driver} is newer than {verdict.limit}, the newest named for DTK {dtk}{advice}"
            found.append(make_finding("DRIVER_NOT_IN_TABLE", report.host, text))
        elif verdict.word == "unknown" and verdict.recommended:
            text = f"{report.host}: whether driver {driver} fits DTK {dtk} is not told by the tables{advice}"
            found.append(make_finding("DRIVER_NOT_IN_TABLE", report.host, text, level="note"))
    return found


def stack_knows_cards(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Driver and DTK are new enough for the cards."""
    needs = merge_tables(wanted.compat)["cards"]
    found = []
    for report in reports:
        for gfx in sorted({card.gfx for card in report.cards if card.gfx in needs}, key=str):
            need = needs[gfx]
            driver, dtk = parse_driver(report.driver.version or ""), read_dtk(report.dtk.version or "")
            old = []
            if driver and compare_numbers(driver.dotted, read_numbers(need.get("driver", ""))) < 0:
                old.append(f"driver {need['driver']}, here is {driver.raw}")
            if dtk and compare_numbers(read_numbers(dtk), read_numbers(need.get("dtk", ""))) < 0:
                old.append(f"DTK {need['dtk']}, here is {dtk}")
            if old:
                text = f"{report.host}: {gfx} needs {' and '.join(old)}"
                found.append(make_finding("CARD_NEEDS_NEWER_STACK", report.host, text))
    return found


def cards_suffice(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """No node is asked for more ranks than it shows cards; nodes without any card run on CPU."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        slots = host.slots or wanted.ranks_per_host
        if not report.card_count or report.usable_cards is None:
            continue
        if host.devices:
            found += _devices_beyond(report, host)
            continue
        if slots is None:
            continue
        if report.usable_cards < slots and _contradiction(report) is None:
            why = ", ".join(f"{name}={value}" for name, value in report.visibility.items())
            more = max(report.card_counts.values(), default=0)
            lost = f" (hy-smi shows {more})" if more > report.card_count else ""
            shown = f"{report.usable_cards} card{'' if report.usable_cards == 1 else 's'}"
            text = f"{report.host} shows {shown}{lost}, the hostfile says {slots}"
            text += f" ({why})" if why else ""
            found.append(make_finding("FEWER_CARDS_THAN_SLOTS", report.host, text))
    return found


def _devices_beyond(report: NodeReport, host: Host) -> list[Finding]:
    count = report.card_count or 0
    beyond = [number for number in host.devices if int(number) >= count]
    # a job's numbers are Slurm's, whose node may show the job its own cards alone
    if not beyond or host.job is not None:
        return []
    cards = "1 card, number 0" if count == 1 else f"{count} cards, numbers 0 to {count - 1}"
    text = f"{report.host} shows {cards}; devices={','.join(host.devices)} asks for {', '.join(beyond)}"
    return [make_finding("FEWER_CARDS_THAN_SLOTS", report.host, f"{text} ({host.source})")]


def visibility_agrees(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """The variables that choose cards do not fight each other."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        # devices= in the hostfile sets one of them and unsets the others
        why = None if host.devices else _contradiction(report)
        if why:
            found.append(make_finding("VISIBILITY_CONTRADICTS", report.host, f"{report.host}: {why}"))
    return found


def _contradiction(report: NodeReport) -> str | None:
    lists = {
        name: [item.strip() for item in value.split(",") if item.strip()]
        for name, value in report.visibility.items()
    }
    rocr, hip, cuda = (lists.get(f"{name}_VISIBLE_DEVICES") for name in ("ROCR", "HIP", "CUDA"))
    chosen = hip if hip is not None else cuda
    name = "HIP_VISIBLE_DEVICES" if hip is not None else "CUDA_VISIBLE_DEVICES"
    if rocr is not None and chosen:
        beyond = [item for item in chosen if item.isdigit() and int(item) >= len(rocr)]
        if beyond:
            return (
                f"ROCR_VISIBLE_DEVICES={','.join(rocr)} leaves {len(rocr)} cards, numbered anew from 0, "
                f"and {name}={','.join(chosen)} asks for card {beyond[0]} of them"
            )
    if hip is not None and cuda is not None and hip != cuda and report.card_kind != "cuda":
        return f"HIP_VISIBLE_DEVICES={','.join(hip)} and CUDA_VISIBLE_DEVICES={','.join(cuda)} choose different cards"
    return None


def cards_present(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Kernel, hy-smi and rocminfo see the same number of cards."""
    found = []
    for report, slots in zip(reports, _slots(wanted.hosts, wanted), strict=True):
        if report.card_tool_error:
            text = f"{report.host}: hy-smi: {report.card_tool_error}"
            found.append(make_finding("CARD_TOOL_SILENT", report.host, text))
        if report.card_tool is False and report.card_kind == "dcu" and not _lacking_hyhal(report):
            text = f"{report.host}: neither hy-smi (/opt/hyhal/bin, PATH) nor rocm-smi is there: who uses the cards is unknown"
            found.append(make_finding("CARD_TOOL_MISSING", report.host, text))
        counts = report.card_counts
        if len(set(counts.values())) < 2 or (slots or 0) > (report.usable_cards or 0):
            continue
        told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        text = f"{report.host}: not all tools see the same number of cards: {told}"
        found.append(make_finding("CARD_LOST", report.host, text))
    return found


def _slots(hosts: Sequence[Host], wanted: Wanted) -> list[int | None]:
    return [host.slots or wanted.ranks_per_host for host in hosts]


def cards_idle(reports: Sequence[NodeReport], wanted: Wanted) -> list[Finding]:
    """Nobody else uses the cards that ranks will get."""
    found = []
    for report, host in zip(reports, wanted.hosts, strict=True):
        used = [card for card in report.cards if not host.devices or str(card.index) in host.devices]
        busy = [
            card for card in used if max(card.used_percent or 0.0, card.busy_percent or 0.0) > BUSY_PERCENT
        ]
        if not busy:
            continue
        cards = ", ".join(f"{card.index} ({card.used_percent or 0:g} % of its memory)" for card in busy)
        text = f"{report.host}: in use: card{'s' if len(busy) > 1 else ''} {cards}"
        by = [_name_process(process) for process in report.processes or () if process.get("pid")]
        found.append(
            make_finding("CARDS_BUSY", report.host, text + (f", by {'; '.join(by[:4])}" if by else ""))
        )
    return found


def _name_process(process: object) -> str:
    held = process if isinstance(process, dict) else {}
    who = f" of {held['user']}" if held.get("user") else ""
    what = f" ({held['command'][:60]})" if held.get("command") else ""
    return f"process {held.get('pid')}{who}{what}"
