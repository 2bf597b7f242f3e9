"""What hy-smi, rocm-smi, rocminfo and nvidia-smi print -> facts of cards. Pure functions on text; runs in the agent.

hy-smi has had five tables, three spellings of its single queries and two of its JSON; noise and colour codes may stand
around all of them. Columns are found by their heading, never by number, and what is not understood is left out.

A card is a dict with ``index`` and, as far as known, ``model``, ``memory_mib``, ``used_mib``, ``used_percent``,
``busy_percent``, ``temp_c``, ``power_w``, ``pci``, ``numa``, ``gfx``, ``vbios``.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional

Card = Dict[str, Any]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TABLE_HEAD = re.compile(r"^\s*(?:GPU|DCU|HCU)\s+Temp", re.I)
_LINE = re.compile(r"^\s*(?:GPU|DCU|HCU|card)\s*\[?(\d+)\]?\s*:\s*(.*)$", re.I)
_NUMA = re.compile(r"\(Topology\)\s*Numa Node\s*:?\s+(-?\d+)", re.I)
_BDF = re.compile(r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.I)
_MIB_OF = {"b": 1.0 / (1 << 20), "kib": 1.0 / 1024, "mib": 1.0, "gib": 1024.0}


def clean(text: str) -> str:
    """Without colour codes and carriage returns."""
    return _ANSI.sub("", text).replace("\r", "")


def read_cards(text: str) -> List[Card]:
    """All cards that a text tells of: JSON, table and single lines together, in the order of their numbers."""
    text = clean(text)
    found: Dict[int, Card] = {}
    for part in (_read_json(text), _read_table(text), _read_lines(text)):
        for index, facts in part.items():
            card = found.setdefault(index, {"index": index})
            for name, value in facts.items():
                card.setdefault(name, value)
    return [found[index] for index in sorted(found)]


def merge_cards(*lists: List[Card]) -> List[Card]:
    """Facts of the same cards from several texts; the first that knows something wins."""
    found: Dict[int, Card] = {}
    for cards in lists:
        for card in cards:
            known = found.setdefault(card["index"], {})
            for name, value in card.items():
                known.setdefault(name, value)
    return [found[index] for index in sorted(found)]


def _read_table(text: str) -> Dict[int, Card]:
    found: Dict[int, Card] = {}
    heads: List[str] = []
    for line in text.split("\n"):
        if _TABLE_HEAD.match(line):
            heads = [head.upper() for head in line.split()]
            continue
        cells = line.split()
        if not heads or not cells or not cells[0].isdigit() or len(cells[0]) > 4:
            continue
        row = dict(zip(heads, cells))
        card: Card = {}
        for key, names in (("used_percent", ("VRAM%",)), ("busy_percent", ("DCU%", "HCU%", "GPU%"))):
            value = next((_percent(row[name]) for name in names if name in row), None)
            if value is not None:
                card[key] = value
        for key, name, unit in (("temp_c", "TEMP", "c"), ("power_w", "AVGPWR", "w")):
            measured = re.match(r"(\d{1,4}(?:\.\d+)?)" + unit + "$", row.get(name, ""), re.I)
            if measured:
                card[key] = float(measured.group(1))
        # the newest table names the card in a column that has no heading
        if len(cells) == len(heads) + 1 and not cells[-1].endswith("%"):
            card["model"] = cells[-1]
        if card:
            found[int(cells[0])] = card
    return found


def _percent(cell: str) -> Optional[float]:
    """``85%`` -> 85.0; a cell without its sign may be cut off."""
    match = re.match(r"(\d+(?:\.\d+)?)%$", cell)
    return float(match.group(1)) if match else None


def _read_lines(text: str) -> Dict[int, Card]:
    found: Dict[int, Card] = {}
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match is None or len(match.group(1)) > 4:
            continue
        index, rest = int(match.group(1)), match.group(2)
        numa = _NUMA.search(rest)
        facts: Card = {"numa": int(numa.group(1))} if numa else {}
        key, colon, value = rest.partition(":")
        if colon and not numa:
            facts = _one_fact(key.strip(), value.strip())
        if facts:
            found[index] = _add_fact(found.get(index, {}), facts)
    return found


def _add_fact(card: Card, facts: Card) -> Card:
    """The later one counts; of several sensors of a card the hottest."""
    hottest = max([held["temp_c"] for held in (card, facts) if "temp_c" in held], default=None)
    found = dict(card, **facts)
    if hottest is not None:
        found["temp_c"] = hottest
    return found


def _read_json(text: str) -> Dict[int, Card]:
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = json.JSONDecoder().raw_decode(text[start:])
        except (ValueError, RecursionError):
            return {}
        found: Dict[int, Card] = {}
        for name, facts in value.items() if isinstance(value, dict) else ():
            match = re.match(r"(?:card|HCU|DCU|GPU)\[?(\d{1,4})\]?$", name, re.I)
            if match is None or not isinstance(facts, dict):
                continue
            card: Card = {}
            for key, held in facts.items():
                card = _add_fact(card, _one_fact(key.strip(), str(held).strip()))
            found[int(match.group(1))] = card
        return found
    return {}


def _one_fact(key: str, value: str) -> Card:
    """One key and value of a card as a fact; an empty dict when it is none that we need."""
    lower = key.lower()
    plain = {"card series": "model", "vbios version": "vbios"}.get(lower)
    if plain and value:
        return {plain: value}
    if lower in ("pci bus", "pci bus id"):
        match = _BDF.match(value)
        return {"pci": match.group(0).lower()} if match else {}
    memory = re.match(r"vram total (used )?memory \((\w+)\)$", lower)
    if memory and memory.group(2) in _MIB_OF and re.match(r"\d+$", value):
        return {"used_mib" if memory.group(1) else "memory_mib": int(int(value) * _MIB_OF[memory.group(2)])}
    number = re.match(r"(\d+(?:\.\d+)?)\s*%?$", value)
    if re.match(r"(?:hcu|dcu|gpu) use \(%\)$", lower) and number:
        return {"busy_percent": float(number.group(1))}
    if lower.startswith("temperature (sensor") and lower.endswith("(c)") and number:
        return {"temp_c": float(number.group(1))}
    if lower.startswith("average graphics package power (w") and number:
        return {"power_w": float(number.group(1))}
    if re.match(r"(?:hcu|dcu|gpu) memory use \(%\)$", lower) and number:
        return {"used_percent": float(number.group(1))}
    return {}


def read_driver_version(text: str) -> Optional[str]:
    """The driver's version out of ``--showdriverversion``."""
    match = re.search(r"Driver\s+Version:[ \t]*([^\s]+)", clean(text), re.I)
    return match.group(1) if match and re.search(r"\d", match.group(1)) else None


def read_processes(text: str) -> Optional[List[Dict[str, Any]]]:
    """Who uses cards, out of ``--showpids``: ``pid``, ``cards``, ``used_mib``; None when the text does not tell."""
    text = clean(text)
    if re.search(r"No KFD PIDs", text, re.I):
        return []
    found: List[Dict[str, Any]] = []
    for line in text.split("\n"):
        pid = re.search(r"\bPID\s*:\s*(\d{1,9})\b", line)
        if pid:
            found.append({"pid": int(pid.group(1))})
        row = re.match(r"\s*(\d{1,9})\s+(\S+)\s+(\d+)\s+(\d+)\s+\d+", line)
        if row:  # PID, process name, number of cards, bytes
            found.append({"pid": int(row.group(1)), "used_mib": int(row.group(4)) >> 20})
        if not found:
            continue
        cards = re.search(r"(?:HCU|DCU|GPU) Index\s*:\s*\[([^\]]*)\]", line, re.I)
        if cards:
            found[-1]["cards"] = [int(number) for number in re.findall(r"\d{1,4}", cards.group(1))]
        used = re.search(r"VRAM USED\s*\((\w+)\)\s*:?\s*(\d+)", line, re.I)
        if used and used.group(1).lower() in _MIB_OF:
            found[-1]["used_mib"] = int(int(used.group(2)) * _MIB_OF[used.group(1).lower()])
    return found or None


def read_rocminfo(text: str) -> List[Card]:
    """Cards out of ``rocminfo``: ``gfx`` and ``model`` of each agent whose type is DCU, HCU or GPU."""
    found: List[Card] = []
    for block in re.split(r"(?m)^\s*Agent\s+\d+\s*$", clean(text))[1:]:
        kind = re.search(r"Device Type:\s*(\w+)", block)
        name = re.search(r"(?m)^\s*Name:\s*(gfx[0-9a-f]+)\S*\s*$", block)
        if kind is None or kind.group(1).upper() not in ("DCU", "HCU", "GPU") or name is None:
            continue
        card: Card = {"index": len(found), "gfx": name.group(1)}
        model = re.search(r"Marketing Name:[ \t]*(\S[^\n]*)", block)
        if model:
            card["model"] = model.group(1).strip()
        found.append(card)
    return found


#: what ``read_nvidia`` expects, for ``nvidia-smi --query-gpu=... --format=csv,noheader,nounits``
NVIDIA_FIELDS = "index,name,memory.total,memory.used,utilization.gpu,pci.bus_id,driver_version"


def read_nvidia(text: str) -> List[Card]:
    """Cards out of nvidia-smi's CSV with ``NVIDIA_FIELDS``; each with ``driver``."""
    found: List[Card] = []
    for line in clean(text).split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 7 or not re.match(r"\d{1,4}$", cells[0]):
            continue
        card: Card = {"index": int(cells[0]), "model": cells[1], "driver": cells[6]}
        if cells[2].isdigit():
            card["memory_mib"] = int(cells[2])
        if cells[2].isdigit() and cells[3].isdigit():
            card["used_mib"] = int(cells[3])
            card["used_percent"] = round(100.0 * int(cells[3]) / max(1, int(cells[2])), 1)
        if cells[4].isdigit():
            card["busy_percent"] = float(cells[4])
        if _BDF.search(cells[5]):
            card["pci"] = cells[5].lower()[-12:]
        found.append(card)
    return found


#: likewise, for ``read_nvidia_gauges``
NVIDIA_GAUGES = "index,memory.total,memory.used,utilization.gpu,temperature.gpu,power.draw"


def read_nvidia_gauges(text: str) -> List[Card]:
    """What changes from moment to moment, out of nvidia-smi's CSV with ``NVIDIA_GAUGES``."""
    found: List[Card] = []
    names = ("memory_mib", "used_mib", "busy_percent", "temp_c", "power_w")
    for line in clean(text).split("\n"):
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != 6 or not re.match(r"\d{1,4}$", cells[0]):
            continue
        card: Card = {"index": int(cells[0])}
        for name, cell in zip(names, cells[1:]):
            if re.match(r"\d{1,9}(\.\d+)?$", cell):
                card[name] = int(cell) if name.endswith("_mib") and cell.isdigit() else float(cell)
        found.append(card)
    return found
