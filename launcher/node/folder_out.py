"""Folders of this node's run folder on their way to the head, which does not see it. Runs in the agent.

The head's words and the answers to them:

    fetch_look  which of these folders are there, with how many bytes; which checkpoints    -> fetch_state
    fetch       send a folder: each file's name, then its bytes in pieces, of which at most ``window`` bytes are under
                way; a folder that goes meanwhile is told with ``about: fetch``   -> file, pieces, fetched or fault
    taken       so many bytes are written at the head: more may follow
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from typing import Any, Callable, Dict, List

from . import wire


def make_run_dir(path: str) -> str:
    """Make the run folder on this node, which does not see the head's; returns why it cannot be, or nothing."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        return "%s: %s" % (path, error.strerror)
    return "" if os.access(path, os.W_OK | os.X_OK) else "%s: no permission to write" % path


def is_inside(path: str, folder: str) -> bool:
    """Whether an absolute path is a folder or stands below it."""
    return os.path.commonpath([os.path.normpath(path), os.path.normpath(folder)]) == os.path.normpath(folder)


def look(message: Dict[str, Any]) -> Dict[str, Any]:
    """What of ``names`` is in ``folder``, as bytes by name; the names of whole checkpoints below it."""
    found = {}
    for name in message["names"]:
        path = os.path.join(message["folder"], name)
        if os.path.isdir(path) and not os.path.islink(path):
            found[name] = sum(os.path.getsize(os.path.join(path, file)) for file in list_files(path))
    checkpoints = os.path.join(message["folder"], "checkpoints")
    names = os.listdir(checkpoints) if os.path.isdir(checkpoints) else []
    whole = sorted(
        name for name in names if name[0] != "." and _is_checkpoint(os.path.join(checkpoints, name))
    )
    return {"kind": "fetch_state", "found": found, "checkpoints": whole}


def _is_checkpoint(path: str) -> bool:
    """Whether it may be one, a script's of whatever form too; a head that was here has left an adapter alone."""
    return os.path.isdir(path) and os.listdir(path) != ["adapter"]


def list_files(folder: str) -> List[str]:
    """All files below a folder, by their names from there."""
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(place, name), folder) for name in names]
    return sorted(found)


class FolderSender:
    """Sends one folder, in a thread of its own: a slow disk must not silence the agent.

    Args:
        folder: whose files are sent.
        say: sends a message to the head, from any thread.
        send: sends a piece of a file to the head, from any thread.
        window: so many bytes may be under way; 0: as many as the wire takes.
    """

    def __init__(
        self,
        folder: str,
        say: Callable[[Dict[str, Any]], None],
        send: Callable[[bytes], None],
        window: int = 0,
    ) -> None:
        self._folder, self._say, self._send, self._window = folder, say, send, window or wire.WINDOW_BYTES
        self._sent = 0
        self._taken = 0
        self._moved = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def taken(self, total: int) -> None:
        """So many bytes have been written at the head."""
        with self._moved:
            self._taken = total
            self._moved.notify()

    def _run(self) -> None:
        try:
            if not os.path.isdir(self._folder):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._folder)
            files = {name: self._send_file(name) for name in list_files(self._folder)}
        except OSError as error:
            told = "%s: %s" % (error.filename or self._folder, error.strerror)
            self._say({"kind": "fault", "about": "fetch", "error": told})
        else:
            self._say({"kind": "fetched", "files": files})

    def _send_file(self, name: str) -> Dict[str, Any]:
        """Size and sha256 as read from this node's disk."""
        digest, size = hashlib.sha256(), 0
        self._say({"kind": "file", "name": name})
        with open(os.path.join(self._folder, name), "rb") as file:
            while True:
                piece = file.read(wire.PIECE_BYTES)
                if not piece:
                    break
                digest.update(piece)
                size += len(piece)
                self._wait_for_room()
                self._sent += len(piece)
                self._send(piece)
        return {"size": size, "sha256": digest.hexdigest()}

    def _wait_for_room(self) -> None:
        with self._moved:
            while self._sent - self._taken >= self._window:
                self._moved.wait()
