"""The result of a run whose first node does not see the run folder: brought to the head and checked. Runs on the head.

Adapter or model come over the session, each file's sha256 as the node read it, and as the manifest among them says; they
appear in the run folder in one step or not at all. Whole checkpoints stay where they are.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from launcher.base.errors import NodeLostError, StoppedError
from launcher.launch.nodes import Nodes
from launcher.launch.signals import INTERRUPTING

RESULTS = ("adapter", "model")
MANIFEST = "manifest.json"
LOOK_LIMIT_S = 60.0


class FetchError(Exception):
    """Why a result stays on the node; the text is for the user."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What came and what did not.

    Attributes:
        host: the node's name.
        names: results that lie in the head's run folder now.
        failed: (name, why) of results that stay on the node.
        checkpoints: names of checkpoints on the node.
    """

    host: str
    names: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    checkpoints: tuple[str, ...] = ()


def fetch_results(
    nodes: Nodes, node: int, run_dir: Path, wanted: Sequence[str], tell: Callable[[str], None]
) -> Fetched:
    """Bring results of a node's run folder into ours, of the same path.

    Args:
        wanted: some of ``RESULTS``; those that are not there are passed over.
        tell: shows a line to the user.

    Raises:
        NodeLostError, StoppedError: while waiting; nothing half is left.
    """
    nodes.send(node, {"kind": "fetch_look", "folder": str(run_dir), "names": list(wanted)})
    state = nodes.collect("fetch_state", [node], LOOK_LIMIT_S)[node]
    names, failed = [], []
    for name, size in state["found"].items():
        try:
            tell(f"fetching {name} ({size / 1024 / 1024:.1f} MiB) from {nodes.name(node)}")
            if size > shutil.disk_usage(run_dir).free:
                raise FetchError("there is no room for it here")
            _fetch(nodes, node, run_dir / name)
            names.append(name)
        except FetchError as error:
            failed.append((name, str(error)))
    return Fetched(nodes.name(node), tuple(names), tuple(failed), tuple(state["checkpoints"]))


def _fetch(nodes: Nodes, node: int, target: Path) -> None:
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    writer = FolderWriter(partial, lambda total: nodes.send(node, {"kind": "taken", "bytes": total}))
    try:
        nodes.send(node, {"kind": "fetch", "folder": str(target)})
        told = _receive(nodes, node, writer)
        if writer.error:
            raise FetchError(writer.error)
        check_files(writer.files, told, partial / MANIFEST)
        old = target.with_name(f".{target.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if target.exists():
            os.replace(target, old)
        os.replace(partial, target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise FetchError(f"{error.filename or target}: {error.strerror}") from None
    finally:
        writer.close()
        shutil.rmtree(partial, ignore_errors=True)


def _receive(nodes: Nodes, node: int, writer: FolderWriter) -> dict[str, Any]:
    """Hand everything that comes to the writer; returns what the node read from its disk."""
    for arrival in nodes.arrivals():
        if arrival.signal_number and arrival.signal_number != INTERRUPTING:  # nothing is left to save
            raise StoppedError("stopped while the result was fetched", arrival.signal_number)
        if arrival.lost and arrival.node == node:
            raise NodeLostError(f"lost {nodes.name(node)} while the result was fetched: {arrival.lost}")
        if arrival.node != node or arrival.frame is None or isinstance(arrival.frame, tuple):
            continue
        if isinstance(arrival.frame, dict) and arrival.frame["kind"] == "fault":
            raise FetchError(str(arrival.frame["error"]))
        if isinstance(arrival.frame, dict) and arrival.frame["kind"] == "fetched":
            writer.close()
            return dict(arrival.frame["files"])
        writer.put(arrival.frame)
    raise AssertionError("arrivals without an end have ended")


def check_files(received: dict[str, dict[str, Any]], told: dict[str, Any], manifest: Path) -> None:
    """Compare what was written here with what the node read, and with the manifest among the files where there is one.

    Raises:
        FetchError: names the first file that differs or is missing.
    """
    for name, facts in told.items():
        if received.get(name) != facts:
            raise FetchError(f"{name} did not arrive as it was sent")
    if not manifest.is_file():
        return
    try:
        listed = dict(json.loads(manifest.read_text(encoding="utf-8"))["files"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FetchError(f"{MANIFEST} cannot be read: {error}") from None
    for name, facts in listed.items():
        if name not in received or received[name]["sha256"] != facts.get("sha256"):
            raise FetchError(f"{name} is not what {MANIFEST} says: it was changed or cut on the node")


@dataclass
class FolderWriter:
    """Writes the files of one folder in a thread of its own: a slow disk must not silence the head.

    Attributes:
        folder: where they go.
        acknowledge: told how many bytes are written.
        files: size and sha256 by name, as they were written.
        error: why nothing more is written.
    """

    folder: Path
    acknowledge: Callable[[int], object]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    error: str = ""
    _frames: queue.SimpleQueue[dict[str, Any] | bytes | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _closed: bool = False

    def put(self, frame: dict[str, Any] | bytes) -> None:
        """Add a frame: the name of the next file, or a piece of it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._frames.put(frame)

    def close(self) -> None:
        """Wait until all is written."""
        if self._thread is not None and not self._closed:
            self._closed = True
            self._frames.put(None)
            self._thread.join()

    def _run(self) -> None:
        total = 0
        file: IO[bytes] | None = None
        name, digest = "", hashlib.sha256()
        while (frame := self._frames.get()) is not None:
            try:
                if isinstance(frame, bytes):
                    total += len(frame)
                    if file is not None:
                        file.write(frame)
                        digest.update(frame)
                        self.files[name] = {"size": file.tell(), "sha256": digest.hexdigest()}
                    self.acknowledge(total)
                elif frame["kind"] == "file":
                    _finish(file)
                    name, digest = str(frame["name"]), hashlib.sha256()
                    file = self._open(name)
                    self.files[name] = {"size": 0, "sha256": digest.hexdigest()}
            except OSError as error:
                self.error = f"{error.filename or self.folder / name}: {error.strerror}"
                file = None
        try:
            _finish(file)
        except OSError as error:
            self.error = self.error or f"{self.folder / name}: {error.strerror}"

    def _open(self, name: str) -> IO[bytes]:
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise OSError(1, "a file outside the folder was sent", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "wb")


def _finish(file: IO[bytes] | None) -> None:
    """On the disk before it counts."""
    if file is not None:
        file.flush()
        os.fsync(file.fileno())
        file.close()
