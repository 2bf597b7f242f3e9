"""``--sync``: bring a folder of the head to every node that does not see it, before anything else. Runs on the head.

A token file in the folder tells which nodes see it. The others get one archive over their sessions; a node that still has
the very same files from an earlier run gets nothing.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from launcher.base.errors import NodeLostError, PreflightError, StoppedError, UsageError
from launcher.hosts.target import fold_names
from launcher.launch.nodes import Nodes
from launcher.launch.parcel import Parcel, pack_folder
from launcher.node.wire import PIECE_BYTES, WINDOW_BYTES
from launcher.remote.session import Arrival

LOOK_LIMIT_S = 30.0
#: nodes that are sent to at a time
MAX_SENDERS = 16


def sync_folder(
    nodes: Nodes, folder: Path, target: str, run_dir: str, tell: Callable[[str], None]
) -> list[int]:
    """Bring a folder to the nodes that lack it; returns which those were.

    Args:
        target: its place on nodes.
        run_dir: the run folder; where it lies in the folder it is not brought.
        tell: shows a line to the user.

    Raises:
        PreflightError: a node cannot take it; UsageError: the folder cannot be packed.
    """
    token, token_file = secrets.token_hex(16), f".dcu-launch-{secrets.token_hex(4)}"
    mark = folder / token_file
    try:
        mark.write_text(token, encoding="ascii")
    except OSError as error:
        raise UsageError(
            f"--sync {folder}: {error.strerror}", "it must be a folder that you can write to"
        ) from None
    try:
        look = {"kind": "sync_look", "target": target, "token_file": token_file, "token": token}
        nodes.send_all(look)
        states = nodes.collect("sync_state", range(len(nodes)), LOOK_LIMIT_S)
    finally:
        mark.unlink(missing_ok=True)
    blind = [node for node in range(len(nodes)) if not states[node]["sees"]]
    if not blind:
        return []
    inside = Path(run_dir).relative_to(folder) if Path(run_dir).is_relative_to(folder) else None
    with ExitStack() as stack:
        parcel = _pack(nodes, folder, [f"/{inside}/"] if inside else [], stack)
        sending = stack.enter_context(_Sending(nodes, parcel))
        lacking = [node for node in blind if states[node]["has"] != parcel.sha256]
        if lacking:
            sending.send(lacking, target, ["runs", *([inside.parts[0]] if inside else [])])
            size = f"{parcel.num_files} files, {parcel.size / 1024 / 1024:.1f} MiB packed"
            tell(f"brought {folder} ({size}) to {fold_names(nodes.name(node) for node in lacking)}")
    return lacking


def _pack(nodes: Nodes, folder: Path, patterns: list[str], stack: ExitStack) -> Parcel:
    """Pack in a thread: the nodes must hear of us meanwhile, and Ctrl-C must be heard."""
    outcome: queue.SimpleQueue[Parcel | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put(stack.enter_context(pack_folder(folder, patterns)))
        except BaseException as error:  # raised again below, in the thread that waits for it
            outcome.put(error)

    threading.Thread(target=work, daemon=True).start()
    while outcome.empty():
        for arrival in nodes.arrivals(nodes.clock() + 0.05):
            _check_end(nodes, arrival)
    done = outcome.get()
    if isinstance(done, BaseException):
        raise done
    return done


def _check_end(nodes: Nodes, arrival: Arrival) -> None:
    if arrival.signal_number:
        raise StoppedError("stopped while a folder was brought to the nodes", arrival.signal_number)
    if arrival.lost:
        raise NodeLostError(f"lost {nodes.name(arrival.node)}: {arrival.lost}")


class _Sending:
    """One archive on its way to some nodes: a thread writes to each, this one hears what they say."""

    def __init__(self, nodes: Nodes, parcel: Parcel) -> None:
        self._parcel = parcel
        self._nodes = nodes
        self._taken: dict[int, int] = {}
        self._over = False
        self._moved = threading.Condition()
        self._slots = threading.Semaphore(MAX_SENDERS)

    def __enter__(self) -> _Sending:
        return self

    def __exit__(self, *_: object) -> None:
        with self._moved:
            self._over = True
            self._moved.notify_all()

    def send(self, lacking: Sequence[int], target: str, keep: list[str]) -> None:
        """Send to some nodes and wait until each has put the folder into its place.

        Raises:
            PreflightError: a node could not; NodeLostError, StoppedError.
        """
        self._taken = dict.fromkeys(lacking, 0)
        order = {
            "kind": "sync_take",
            "target": target,
            "sha256": self._parcel.sha256,
            "size": self._parcel.size,
            "keep": keep,
        }
        for node in lacking:
            self._nodes.send(node, order)
            threading.Thread(target=self._write, args=(node,), daemon=True).start()
        waiting = set(lacking)
        faults: list[str] = []
        for arrival in self._nodes.arrivals():
            _check_end(self._nodes, arrival)
            if isinstance(arrival.frame, dict) and self._hear(arrival.node, arrival.frame, faults):
                waiting.discard(arrival.node)
                if not waiting:
                    break
        if faults:
            raise PreflightError("\n".join(faults), "another place on the nodes can be named with --workdir")

    def _hear(self, node: int, frame: dict[str, Any], faults: list[str]) -> bool:
        """Whether the node has done, well or badly."""
        if frame["kind"] == "fault":
            faults.append(f"{self._nodes.name(node)}: {frame['error']}")
        with self._moved:
            if frame["kind"] == "taken":
                self._taken[node] = int(frame["bytes"])
            elif frame["kind"] in ("fault", "synced"):
                self._taken.pop(node, None)
            self._moved.notify_all()
        return frame["kind"] in ("fault", "synced")

    def _write(self, node: int) -> None:
        """In a thread: all pieces, never more than a window ahead of what the node has written."""
        with self._slots:
            sent = 0
            try:
                for piece in self._parcel.pieces(PIECE_BYTES):
                    if not self._may_send(node, sent) or not self._nodes.send_data(node, piece):
                        return
                    sent += len(piece)
            except (OSError, ValueError):
                return  # the file is closed: the run has ended

    def _may_send(self, node: int, sent: int) -> bool:
        with self._moved:
            self._moved.wait_for(
                lambda: self._over or node not in self._taken or sent - self._taken[node] < WINDOW_BYTES
            )
            return not self._over and node in self._taken
