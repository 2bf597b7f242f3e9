"""What gets the agent running on a node that has nothing of ours: one shell line, one short program, one zip.

The shell line finds an interpreter and runs the short program. That says HAVE or NEED (or OLD), after a mark, so that
what a login shell prints before it is passed over; on NEED it reads a zip from stdin and unpacks it once under
``~/.cache/dcu-launch/<sha256>``; then it becomes the agent. Nothing but constants and interpreter paths stands in the
shell line: values travel as JSON on stdin. Code that no run has used for 30 days is removed when other code is unpacked;
agents mark theirs as used while they live.

The interpreter runs without ``site`` (-S) and PYTHON* variables (-E -s): the agent needs the standard library alone, and
.pth files of a large environment cost more than all else.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shlex
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

MARK = b"\nDCU-LAUNCH "
#: for a login whose PATH has none
SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3", "/usr/libexec/platform-python")
EXIT_NO_PYTHON = 97
EXIT_EARLY = 98
EXIT_OLD_PYTHON = 99
#: the agent's own floor; ranks need 3.10
OLDEST_AGENT_PYTHON = (3, 8)

# Valid from Python 2.7 on, so that a too old interpreter can say so.
_PROGRAM = """
import os, sys, time
def say(text):
    os.write(1, ("\\nDCU-LAUNCH " + text + "\\n").encode())
def take(count):
    got = b""
    while len(got) < count:
        piece = os.read(0, min(count - len(got), 1 << 16))
        if not piece:
            os._exit(98)
        got += piece
    return got
if sys.version_info < (3, 8):
    say("OLD %d.%d %s" % (sys.version_info[0], sys.version_info[1], sys.executable))
    os._exit(99)
def private(path):
    about = os.lstat(path)
    return about.st_mode & 0o170022 == 0o040000 and about.st_uid == os.getuid()
def usable(path):
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        return private(path) and os.access(path, os.W_OK)
    except OSError:
        return False
sha = take(64).decode()
token = take(32).decode()
first = take(int(take(8), 16))
roots = [os.path.join(os.path.expanduser("~"), ".cache", "dcu-launch"), "/tmp/dcu-launch-code-%d" % os.getuid()]
root = next((path for path in roots if usable(path)), None)
if root is None:
    import tempfile
    root = tempfile.mkdtemp(prefix="dcu-launch-")
home = os.path.join(root, sha)
if os.path.isdir(home) and private(home):
    say("HAVE")
    if time.time() - os.stat(home).st_mtime > 86400:
        os.utime(home)
else:
    say("NEED")
    exec(take(int(take(8), 16)).decode())
sys.path.insert(0, home)
sys.dont_write_bytecode = False
from launcher.node.agent import main
main(home, token, first)
"""

# What it runs on NEED, sent ahead of the zip: most nodes have the code, and compiling this would take them a while.
_UNPACK = """
packed = take(int(take(8), 16))
import io, shutil, tempfile, zipfile
aside = tempfile.mkdtemp(dir=root)
zipfile.ZipFile(io.BytesIO(packed)).extractall(aside)
os.chmod(aside, 0o755)
try:
    os.rename(aside, home)
except OSError:
    shutil.rmtree(aside, ignore_errors=True)
for name in os.listdir(root):
    if len(name) != 64 and not name.startswith("tmp"):
        continue
    try:
        if time.time() - os.lstat(os.path.join(root, name)).st_mtime > 30 * 86400:
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)
    except OSError:
        pass
"""


class Payload:
    """Our own package as it is sent to nodes that do not have it yet.

    Attributes:
        sha256: names the code: of all file names and contents, in hex.
    """

    def __init__(self, files: Sequence[tuple[str, bytes]]) -> None:
        digest = hashlib.sha256()
        for name, content in files:
            digest.update(b"%s\0%d\0" % (name.encode(), len(content)))
            digest.update(content)
        self.sha256 = digest.hexdigest()
        self._files = files
        self._lock = threading.Lock()
        self._packed = b""

    def greeting(self, token: str, first: bytes) -> bytes:
        """What the program reads first: which code is wanted, the run's token, the first words for the agent."""
        return self.sha256.encode("ascii") + token.encode("ascii") + b"%08x" % len(first) + first

    def is_delivery(self, data: bytes) -> bool:
        """Whether these bytes are what ``delivery`` gave."""
        return data is self._packed

    def delivery(self) -> bytes:
        """What it reads after NEED: how to unpack, then a zip, each after 8 hex digits of length; made once, when needed."""
        with self._lock:
            if not self._packed:
                parts = (_UNPACK.encode("ascii"), _pack(self._files))
                self._packed = b"".join(b"%08x" % len(part) + part for part in parts)
            return self._packed


def _pack(files: Sequence[tuple[str, bytes]]) -> bytes:
    import zipfile

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


@cache
def make_payload() -> Payload:
    """Read our own package. Call it once before threads do: each would read it anew."""
    package = Path(__file__).resolve().parent.parent
    return Payload(sorted(_read_files(str(package), "launcher")))


def _read_files(folder: str, name: str) -> Iterator[tuple[str, bytes]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if entry.is_dir():
                yield from _read_files(entry.path, f"{name}/{entry.name}")
            elif entry.is_file():
                with open(entry.path, "rb") as file:
                    yield f"{name}/{entry.name}", file.read()


def program_source() -> str:
    """The short program itself."""
    return _PROGRAM


@cache
def program() -> str:
    """The short program as words for ``python``: base64, since every login shell quotes in its own way.

    ``sys.path[0]`` is the folder that the shell starts in: a module of the user's there must not come before Python's own.
    """
    packed = base64.b64encode(zlib.compress(_PROGRAM.encode("ascii"), 9)).decode("ascii")
    return (
        "import sys;sys.path[:1]=[];import binascii,zlib;"
        f'exec(zlib.decompress(binascii.a2b_base64("{packed}")))'
    )


def interpreters(python: str | None) -> list[str]:
    """Interpreters to try for the agent, in order: the named one, the head's own path, those on PATH, the system's."""
    named = [python] if python else []
    return [*named, sys.executable, "python3", "python", *SYSTEM_PYTHONS]


def shell_words(*words: str) -> str:
    """Words as every login shell reads them: csh and tcsh expand ``!`` even in quotes, but not behind a backslash."""
    return " ".join(shlex.quote(word).replace("!", "'\\!'") for word in words)


@cache
def shell_line(python: str | None) -> str:
    """One line that any login shell (sh, bash, zsh, csh, fish) hands to sh unchanged."""
    find = (
        'for p in "$@"; do case $p in "~/"*) p=$HOME/${p#"~/"};; esac; '
        'command -v "$p" >/dev/null 2>&1 && exec "$p" -E -s -S -u -c "$0"; done; '
        f'echo; echo "DCU-LAUNCH NONE $*"; exit {EXIT_NO_PYTHON}'
    )
    return shell_words("exec", "/bin/sh", "-c", find, program(), *interpreters(python))
