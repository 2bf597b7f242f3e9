"""A folder that the head brings to this node (``--sync``): unpacked aside, then put into its place. Runs in the agent.

The head's words and the answers to them:

    sync_look  does the node see the head's own folder, which version was brought before   -> sync_state
    sync_take  a tar.gz follows in pieces; each is acknowledged when written (``taken``)     -> synced or fault

A file in the folder names what was brought. What else lies there, such as run folders of this node, stays; a folder that
was never brought is not touched.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import queue
import shutil
import socket
import tarfile
import threading
import zlib
from typing import Any, Callable, Dict, List, Set

MARK = ".dcu-launch-sync.json"
READ_BYTES = 256 * 1024


def look(message: Dict[str, Any]) -> Dict[str, Any]:
    """Whether ``target`` holds the head's token, and the sha256 of what was brought there before, if it is still whole."""
    target = message["target"]
    _recover(target)
    try:
        with open(os.path.join(target, message["token_file"])) as file:
            sees = file.read().strip() == message["token"]
    except OSError:
        sees = False
    return {"kind": "sync_state", "sees": sees, "has": "" if sees else _brought(target)}


def _brought(target: str) -> str:
    """The sha256 of the archive whose files lie there unchanged; empty when they do not."""
    mark = _read_mark(target)
    for name, (size, modified) in mark.get("files", {}).items():
        try:
            about = os.lstat(os.path.join(target, name))
        except OSError:
            return ""
        if (about.st_size, int(about.st_mtime)) != (size, modified):
            return ""
    return str(mark.get("sha256", ""))


def _read_mark(target: str) -> Dict[str, Any]:
    try:
        with open(os.path.join(target, MARK), encoding="ascii") as file:
            mark = json.load(file)
    except (OSError, ValueError):
        return {}
    return mark if isinstance(mark, dict) else {}


class FolderReceiver:
    """Takes one archive and makes a folder of it, in a thread of its own: a slow disk must not silence the agent.

    Args:
        message: ``sync_take``: ``target``, ``sha256`` and ``size`` of the archive, ``keep`` (names at the top of the folder
            that may lie there although it was never brought).
        answer: sends a message to the head, from any thread.
    """

    def __init__(self, message: Dict[str, Any], answer: Callable[[Dict[str, Any]], None]) -> None:
        self._target = message["target"]
        self._sha256, self._size, self._keep = message["sha256"], int(message["size"]), message["keep"]
        self._answer = answer
        self._pieces: queue.Queue[bytes] = queue.Queue()
        self._buffer = b""
        self._taken = 0
        self._hash = hashlib.sha256()
        parent, name = os.path.split(self._target)
        self._aside = os.path.join(parent, ".%s.dcu-launch-%s-%d" % (name, socket.gethostname(), os.getpid()))
        threading.Thread(target=self._run, daemon=True).start()

    def feed(self, piece: bytes) -> None:
        """Add the next piece of the archive."""
        self._pieces.put(piece)

    def _run(self) -> None:
        try:
            answer: Dict[str, Any] = {"kind": "synced", "files": self._receive()}
        except (OSError, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            path = getattr(error, "filename", None) or self._target
            answer = {"kind": "fault", "error": "--sync: %s: %s" % (path, why)}
        shutil.rmtree(self._aside, ignore_errors=True)
        self._answer(answer)

    def _receive(self) -> int:
        check_place(self._target, self._keep)
        os.makedirs(os.path.dirname(self._target), exist_ok=True)
        shutil.rmtree(self._aside, ignore_errors=True)
        os.mkdir(self._aside)
        with tarfile.open(fileobj=self, mode="r|gz", bufsize=READ_BYTES) as archive:  # type: ignore[call-overload]
            files = unpack(archive, self._aside)
        while self._taken < self._size:
            self._next_piece()
        if self._hash.hexdigest() != self._sha256:
            raise ValueError("what arrived is not what was sent")
        with open(os.path.join(self._aside, MARK), "w", encoding="ascii") as file:
            json.dump({"sha256": self._sha256, "files": files}, file)
        put_in_place(self._aside, self._target, self._sha256)
        return len(files)

    def read(self, size: int) -> bytes:
        """For tarfile: up to ``size`` bytes of the archive; empty at its end."""
        if not self._buffer and self._taken < self._size:
            self._next_piece()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _next_piece(self) -> None:
        piece = self._pieces.get()
        self._hash.update(piece)
        self._taken += len(piece)
        self._buffer = piece
        self._answer({"kind": "taken", "bytes": self._taken})


def check_place(target: str, keep: List[str]) -> None:
    """Refuse to replace what somebody else put there.

    Raises:
        ValueError: the target is no folder, or one with files that were not brought.
    """
    if not os.path.lexists(target):
        return
    if os.path.islink(target) or not os.path.isdir(target):
        raise ValueError("exists and is not a folder")
    if not _read_mark(target) and not set(os.listdir(target)) <= set(keep):
        raise ValueError("exists and was not brought by --sync: move it away, or name another --workdir")


def unpack(archive: tarfile.TarFile, folder: str) -> Dict[str, List[int]]:
    """Write all members below a folder; returns size and modification time of each file by its name.

    Raises:
        ValueError: a member would lie outside.
    """
    files: Dict[str, List[int]] = {}
    for member in archive:
        name = os.path.normpath(member.name)
        if name.startswith(("/", "../")) or name == "..":
            raise ValueError("%s lies outside the folder" % member.name)
        path = os.path.join(folder, name)
        if member.isdir():
            os.makedirs(path, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if member.issym():
            os.symlink(member.linkname, path)
        else:
            source = archive.extractfile(member)
            with open(path, "wb") as file:
                if source is not None:
                    shutil.copyfileobj(source, file, 1 << 20)
            os.chmod(path, member.mode & 0o777 | 0o200)
            # modules compiled before are valid by this time and the size
            os.utime(path, (member.mtime, member.mtime))
        about = os.lstat(path)
        files[name] = [about.st_size, int(about.st_mtime)]
    return files


def put_in_place(aside: str, target: str, sha256: str) -> None:
    """Rename the new folder to its name, and move into it what the node itself had in the old one."""
    if _brought(target) == sha256:
        return  # another node that shares this disk was quicker
    old = aside + ".old"
    if os.path.lexists(target):
        os.rename(target, old)
    os.rename(aside, target)
    if os.path.isdir(old):
        _keep_own(old, target)


def _keep_own(old: str, new: str) -> None:
    """Move what was not brought from the old folder to the new one, and remove the old one if nothing is left over."""
    if _move_own(old, new, set(_read_mark(old).get("files", {})) | {MARK}):
        shutil.rmtree(old, ignore_errors=True)


def _move_own(old: str, new: str, brought: Set[str], below: str = "") -> bool:
    moved = True
    for name in os.listdir(os.path.join(old, below)):
        path = os.path.join(below, name)
        if name == "__pycache__" or path in brought:
            continue
        source, place = os.path.join(old, path), os.path.join(new, path)
        is_folder = os.path.isdir(source) and not os.path.islink(source)
        if not os.path.lexists(place) and not any(entry.startswith(path + "/") for entry in brought):
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.rename(source, place)
        elif is_folder and (os.path.isdir(place) or not os.path.lexists(place)):
            moved = _move_own(old, new, brought, path) and moved
        else:
            moved = False  # the head brings something else under this name
    return moved


def _recover(target: str) -> None:
    """Undo what an agent that was killed between two renames has left, and remove what it unpacked."""
    parent, name = os.path.split(target)
    pattern = os.path.join(
        glob.escape(parent), ".%s.dcu-launch-%s-*" % (glob.escape(name), socket.gethostname())
    )
    for path in glob.glob(pattern):
        number = path.rpartition("-")[2].partition(".")[0]
        if number.isdigit() and os.path.exists("/proc/%s" % number):
            continue
        if not path.endswith(".old"):
            shutil.rmtree(path, ignore_errors=True)
        elif os.path.lexists(target):
            _keep_own(path, target)
        else:
            os.rename(path, target)
