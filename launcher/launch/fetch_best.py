"""The adapter of the best checkpoint, brought to the head while training goes on. Runs on the head.

Where the first node does not see the run folder, its best checkpoint's adapter comes to ``checkpoints/step-N/adapter`` of
the head's, checked by sha256, in one step or not at all, with ``checkpoints/best`` pointing to it; an older one goes then.
The supervisor hands on what arrives and never waits here: files are written, checked and moved in a thread. Only the
newest best counts: one that is due while another is on its way takes its turn afterwards.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.errors import NodeLostError, StoppedError
from launcher.launch.fetch import MANIFEST, FetchError, FolderWriter, check_files
from launcher.launch.nodes import Nodes
from launcher.launch.signals import INTERRUPTING
from launcher.remote.session import Arrival

#: so little may be under way: ranks' output, losses and answers to a stop come over the same line
WINDOW_BYTES = 1024 * 1024
#: the mark by which faults of a fetch are told from those of ranks
ABOUT = "fetch"
POINTER, ADAPTER, PARTIAL = "best", "adapter", ".fetched.partial"


@dataclass(frozen=True, slots=True)
class _Wish:
    """A best checkpoint to fetch: the node that has it, and its folder's name, ``step-00000100``."""

    node: int
    name: str
    num_bytes: int


class BestFetch:
    """Fetches one adapter after another.

    Args:
        run_dir: the head's run folder; the node's has the same path.
        tell: shows a line to the user; called from ``hear``, ``take`` and ``tick`` alone.

    Attributes:
        here: the name of the checkpoint whose adapter came last; empty before one has.
    """

    def __init__(self, nodes: Nodes, run_dir: Path, tell: Callable[[str], None]) -> None:
        self.here = ""
        self._nodes, self._tell = nodes, tell
        self._run_dir, self._checkpoints = run_dir, run_dir / "checkpoints"
        self._next: _Wish | None = None
        self._current: _Wish | None = None
        self._writer: FolderWriter | None = None
        self._placing: threading.Thread | None = None
        self._error = ""
        self._is_over = False

    @property
    def is_busy(self) -> bool:
        """Whether an adapter is on its way."""
        return self._current is not None

    def hear(self, node: int, data: dict[str, Any]) -> None:
        """A checkpoint was written on a node that does not see the run folder."""
        if data.get("best") and data.get("adapter_bytes") and not self._is_over:
            self._next = _Wish(node, Path(str(data["path"])).name, int(data["adapter_bytes"]))
            self._start()

    def take(self, arrival: Arrival) -> bool:
        """Take what belongs to a fetch; False for everything else."""
        current = self._current
        frame: Any = arrival.frame
        if arrival.node < 0 or not _is_of_fetch(frame):
            return False
        if current is None or self._writer is None or arrival.node != current.node or self._placing:
            return True  # of a fetch that was given up
        if not isinstance(frame, bytes) and frame["kind"] != "file":
            told = None if frame["kind"] == "fault" else dict(frame["files"])
            self._error = str(frame.get("error", ""))
            self._placing = threading.Thread(
                target=self._place, args=(current, self._writer, told), daemon=True
            )
            self._placing.start()
        else:
            self._writer.put(frame)
        return True

    def tick(self) -> None:
        """See whether the thread is done; called some ten times a second."""
        if self._placing is None or self._placing.is_alive() or self._current is None:
            return
        wish, self._current, self._placing, self._writer = self._current, None, None, None
        if not self._error:
            self.here = wish.name
        elif self._next is None:  # else a better one is due, and nobody misses this one
            self._tell_of(wish, self._error)
        self._start()

    def _tell_of(self, wish: _Wish, why: str) -> None:
        self._tell(f"the best adapter ({wish.name}) stays on {self._nodes.name(wish.node)}: {why}")

    def give_up(self) -> None:
        """Fetch nothing more; what is half here goes."""
        self._next, self._is_over = None, True
        if self._current is not None and self._placing is None and self._writer is not None:
            # no word for the node: without ours it sends nothing more
            self._error = "the run was stopped"
            self._placing = threading.Thread(
                target=self._place, args=(self._current, self._writer, None), daemon=True
            )
            self._placing.start()

    def finish(self) -> None:
        """Wait for what is on its way or due, once the ranks have ended.

        Raises:
            NodeLostError, StoppedError: while waiting; nothing half is left.
        """
        try:
            while self.is_busy:
                for arrival in self._nodes.arrivals(self._nodes.clock() + 0.1):
                    if arrival.signal_number and arrival.signal_number != INTERRUPTING:
                        raise StoppedError(
                            "stopped while the best adapter was fetched", arrival.signal_number
                        )
                    if arrival.lost and self._current and arrival.node == self._current.node:
                        raise NodeLostError(
                            f"lost {self._nodes.name(arrival.node)} while the best adapter was fetched: {arrival.lost}"
                        )
                    self.take(arrival)
                    self.tick()
                self.tick()
        finally:
            self.give_up()
            if self._placing is not None:
                self._placing.join()

    def _start(self) -> None:
        if self._current is not None or self._next is None or self._is_over:
            return
        wish, self._next, self._error = self._next, None, ""
        # what the head itself writes needs the rest
        if wish.num_bytes > shutil.disk_usage(self._run_dir).free:
            self._tell_of(wish, "there is no room for it here")
            return
        self._current = wish

        def acknowledge(total: int) -> None:
            if not self._is_over:
                self._nodes.send(wish.node, {"kind": "taken", "bytes": total})

        partial = self._checkpoints / PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        self._writer = FolderWriter(partial / ADAPTER, acknowledge)
        folder = str(self._checkpoints / wish.name / ADAPTER)
        self._nodes.send(wish.node, {"kind": "fetch", "folder": folder, "window": WINDOW_BYTES})

    def _place(self, wish: _Wish, writer: FolderWriter, told: dict[str, Any] | None) -> None:
        """In the thread: finish what was written, check it, and put it in its place."""
        partial = self._checkpoints / PARTIAL
        try:
            writer.close()
            if told is None:
                return
            if writer.error:
                raise FetchError(writer.error)
            if MANIFEST not in writer.files:
                raise FetchError("it went while it was sent")
            check_files(writer.files, told, partial / ADAPTER / MANIFEST)
            self._move(partial, self._checkpoints / wish.name)
        except FetchError as error:
            self._error = str(error)
        except OSError as error:
            self._error = f"{error.filename or partial}: {error.strerror}"
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _move(self, partial: Path, target: Path) -> None:
        if target.exists() and not is_copy(target):
            raise FetchError(f"{target} holds a checkpoint of another run")
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)  # of a head that was killed between the two steps
        if target.exists():  # of the same step, of an earlier start
            os.replace(target, old)
        os.replace(partial, target)
        shutil.rmtree(old, ignore_errors=True)
        pointer = self._checkpoints / POINTER
        aside = pointer.with_name(f".{POINTER}.partial")
        aside.write_text(f"{target.name}\n", encoding="utf-8")
        os.replace(aside, pointer)
        for folder in self._checkpoints.glob("step-*"):
            if folder != target and is_copy(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_of_fetch(frame: Any) -> bool:
    if not isinstance(frame, dict):
        return isinstance(frame, bytes)
    kind = frame.get("kind")
    return kind in ("file", "fetched") or (kind == "fault" and frame.get("about") == ABOUT)


def is_copy(folder: Path) -> bool:
    """Whether a checkpoint's folder holds a fetched adapter and nothing to go on from."""
    return folder.is_dir() and [entry.name for entry in folder.iterdir()] == [ADAPTER]
