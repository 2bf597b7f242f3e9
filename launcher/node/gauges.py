"""What changes on a node while ranks run: its cards' memory, use and temperature, and the host's. Runs in the agent.

A thread reads every few seconds and says ``gauges``: ``cpu_percent``, ``cpus``, ``memory_mib``, ``used_mib`` of the host and
``cards``, as ``smi`` gives them. One short program a reading where there are cards, hy-smi, rocm-smi or nvidia-smi; a
reading that takes long is made less often, one that hangs is not waited for.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

from . import process_tree, smi
from .ask import find_program
from .probe_cards import count_nvidia, find_smi, has_kfd, read_topology

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

READING_LIMIT_S = 8.0
#: of the time between two readings at most this part goes into one
MOST_SHARE = 0.1


class Gauges:
    """Reads in a thread of its own until the agent ends.

    Args:
        variables: the node's environment.
        say: takes each reading; called from the thread.

    Attributes:
        pids: of the program that reads just now; its end is awaited by nobody else.
    """

    def __init__(
        self, variables: Mapping[str, str], every_s: float, say: Callable[[Dict[str, Any]], None]
    ) -> None:
        self.pids: Set[int] = set()
        self._variables = variables
        self._every_s = every_s
        self._say = say
        self._last_cpu: Optional[Tuple[float, float]] = None
        self._hanging: Optional[process_tree.ProcessId] = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, daemon=True, name="gauges").start()

    def end(self) -> None:
        """Read no more; a program that reads just now is left to who ends everything."""
        self._ended.set()
        self.pids.clear()

    def _run(self) -> None:
        command, environment = find_tool(self._variables)
        known = [{"index": card["index"], "memory_mib": card.get("memory_mib")} for card in read_topology()]
        self._last_cpu = read_cpu()
        wait_s = 1.0  # the first one soon, when ranks have begun to take memory
        while not self._ended.wait(wait_s):
            begun = time.monotonic()
            reading = self._read_host()
            text = self._ask(command, environment) if command else ""
            reading["cards"] = read_tool(command, text, known)
            if not self._ended.is_set():
                self._say(dict(reading, kind="gauges", time=time.time()))
            wait_s = max(self._every_s, (time.monotonic() - begun) / MOST_SHARE)

    def _read_host(self) -> Dict[str, Any]:
        memory = read_memory()
        cpu, before = read_cpu(), self._last_cpu
        self._last_cpu = cpu
        reading: Dict[str, Any] = {"cpus": os.cpu_count() or 1}
        if cpu and before and cpu[1] > before[1]:
            reading["cpu_percent"] = round(100.0 * (cpu[0] - before[0]) / (cpu[1] - before[1]), 1)
        if memory:
            reading.update(memory_mib=memory[0], used_mib=memory[1])
        return reading

    def _ask(self, command: List[str], environment: Dict[str, str]) -> str:
        """What the program says; empty when it hangs, or the last one still does.

        Its exit may be taken by the agent, who takes that of every child: only its words are of use here.
        """
        if self._hanging is not None and process_tree.start_time(self._hanging[0]) == self._hanging[1]:
            return ""
        self._hanging = None
        try:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return ""
        self.pids.add(process.pid)
        started = process_tree.start_time(process.pid)
        try:
            out, _ = process.communicate(timeout=READING_LIMIT_S)
        except subprocess.TimeoutExpired:
            if started is not None:
                self._hanging = (process.pid, started)
                process_tree.send_signal(self._hanging, signal.SIGKILL)
            try:
                process.wait(1.0)
            except (
                subprocess.TimeoutExpired
            ):  # in the kernel, with the driver: it is looked for before the next reading
                pass
            if process.stdout is not None:
                process.stdout.close()
            return ""
        self.pids.discard(process.pid)
        return out.decode("utf-8", "replace")


def find_tool(variables: Mapping[str, str], root: str = "") -> Tuple[List[str], Dict[str, str]]:
    """The command that tells of cards, and its variables; an empty command on a node without cards."""
    has_cards = has_kfd(root) and bool(read_topology(root))
    if count_nvidia(root) and not has_cards:
        nvidia = find_program("nvidia-smi", variables, [])
        query = ["--query-gpu=" + smi.NVIDIA_GAUGES, "--format=csv,noheader,nounits"]
        return ([nvidia, *query] if nvidia else []), dict(variables)
    if not has_cards:
        return [], dict(variables)
    program, environment = find_smi(variables, variables.get("DTKROOT"), True, root)
    return ([program] if program else []), environment


def read_tool(command: List[str], text: str, known: List[smi.Card]) -> List[smi.Card]:
    """Cards out of what the command said; hy-smi's table has memory in percent alone: ``known`` says of how much."""
    if len(command) > 1:
        return smi.read_nvidia_gauges(text)
    cards = smi.read_cards(text)
    sizes = {card["index"]: card["memory_mib"] for card in known}
    for card in cards:
        size = card.setdefault("memory_mib", sizes.get(card["index"]))
        if size and "used_percent" in card:
            card.setdefault("used_mib", int(size * card["used_percent"] / 100))
    return cards


def read_memory(path: str = "/proc/meminfo") -> Optional[Tuple[int, int]]:
    """MiB of memory that the host has, and how many of them are in use."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            values = dict(re.findall(r"^(\w+):\s+(\d+) kB$", file.read(), re.M))
        total = int(values["MemTotal"])
        return total >> 10, (total - int(values["MemAvailable"])) >> 10
    except (OSError, KeyError):
        return None


def read_cpu(path: str = "/proc/stat") -> Optional[Tuple[float, float]]:
    """Ticks of all processors spent working, and all ticks, since boot."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            ticks = [float(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - ticks[3] - ticks[4], sum(ticks)) if len(ticks) > 4 else None
