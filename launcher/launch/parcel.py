"""A folder of the head as one archive: the same bytes each time for the same files. Runs on the head.

In: a folder and the patterns of what to leave out. Out: a temporary tar.gz with its sha256, for ``sync`` to send.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from launcher.base.errors import UsageError
from launcher.launch.ignore import DEFAULT_PATTERNS, IGNORE_FILE, Rule, is_ignored, read_rules

#: of the files before they are packed: this is for code, data belongs on a disk of the nodes
LIMIT_BYTES = 512 * 1024 * 1024
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Parcel:
    """An archive on its way.

    Attributes:
        file: the open temporary file.
        size: of the archive in bytes.
    """

    file: IO[bytes]
    size: int
    sha256: str
    num_files: int

    def pieces(self, size: int) -> Iterator[bytes]:
        """The archive in pieces; from any number of threads at once."""
        at = 0
        while piece := os.pread(self.file.fileno(), size, at):
            at += len(piece)
            yield piece


@contextmanager
def pack_folder(folder: Path, more_patterns: Sequence[str] = ()) -> Iterator[Parcel]:
    """Pack what a folder holds, without what .dcuignore and the usual patterns leave out; gone when left.

    Raises:
        UsageError: it is no folder, cannot be read, or is larger than ``LIMIT_BYTES``.
    """
    names = list_files(folder, read_rules([*DEFAULT_PATTERNS, *_own_patterns(folder), *more_patterns]))
    _check_size(folder, names)
    with tempfile.TemporaryFile() as file:
        try:
            _write_archive(file, folder, names)
        except OSError as error:
            raise UsageError(f"--sync: {error.filename or folder}: {error.strerror}") from None
        file.flush()
        parcel = Parcel(file, file.tell(), "", sum(not _is_folder(folder / name) for name in names))
        digest = hashlib.sha256()
        for piece in parcel.pieces(1 << 20):
            digest.update(piece)
        yield replace(parcel, sha256=digest.hexdigest())


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _write_archive(file: IO[bytes], folder: Path, names: Sequence[str]) -> None:
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            _add(archive, folder, name)


def _own_patterns(folder: Path) -> list[str]:
    path = folder / IGNORE_FILE
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def list_files(folder: Path, rules: Sequence[Rule]) -> list[str]:
    """Files, symbolic links and folders below a folder that the rules leave, sorted; folders before what lies in them.

    Raises:
        UsageError: some of them cannot be listed; all are named.
    """
    if not folder.is_dir():
        raise UsageError(f"--sync {folder}: there is no such folder")
    found: list[str] = []
    problems: list[str] = []
    _walk(folder, "", rules, found.append, problems)
    if problems:
        raise UsageError("\n".join(f"--sync: {problem}" for problem in problems))
    return sorted(found)


def _walk(
    folder: Path, below: str, rules: Sequence[Rule], take: Callable[[str], None], problems: list[str]
) -> None:
    try:
        entries = sorted(os.scandir(folder / below), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(f"{error.filename}: {error.strerror}")
        return
    for entry in entries:
        name = below + entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_ignored(name, is_folder, rules):
            continue
        if is_folder:
            take(name)
            _walk(folder, name + "/", rules, take, problems)
        elif entry.is_symlink() or entry.is_file():  # sockets and the like stay
            take(name)


def _check_size(folder: Path, names: Sequence[str]) -> None:
    """Refuse a folder that is too large, naming what makes it so."""
    sizes: dict[str, int] = {}
    total = 0
    for name in names:
        about = os.lstat(folder / name)
        if stat.S_ISREG(about.st_mode):
            total += about.st_size
            top = name.split("/")[0]
            sizes[top] = sizes.get(top, 0) + about.st_size
    if total <= LIMIT_BYTES:
        return
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])[:_SHOWN]
    raise UsageError(
        f"--sync {folder}: {_mib(total)} of files, at most {_mib(LIMIT_BYTES)} are brought; "
        "the largest: " + ", ".join(f"{name} {_mib(size)}" for name, size in largest),
        f"leave out what ranks do not need by patterns in {folder / IGNORE_FILE}; data and models belong on the nodes' disks",
    )


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:,.0f} MiB"


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    info = archive.gettarinfo(str(folder / name), arcname=name)
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    info.mode &= 0o777
    if info.islnk():  # a second name of a file that is in already: the file again
        info.type = tarfile.REGTYPE
        info.size = os.lstat(folder / name).st_size
    if info.isdir():
        info.mtime = 0  # changes with what was left out
    if info.isreg():
        with open(folder / name, "rb") as file:
            archive.addfile(info, file)
    else:
        archive.addfile(info)
