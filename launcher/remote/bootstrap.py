"""What gets the agent running on a node that has nothing of ours: one shell line, one short program, one zip.

The shell line finds an interpreter and runs the short program. That says HAVE or NEED (or OLD), after a mark, so that
what a login shell prints before it is passed over; on NEED it reads the zip from stdin, checks it and unpacks it once
under ``~/.cache/dcu-launch/<sha256>``; then it becomes the agent. Nothing but constants and interpreter paths stands in
the shell line: values travel as JSON on stdin.
"""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
import sys
import zipfile
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MARK = b"\nDCU-LAUNCH "
EXIT_NO_PYTHON = 97
EXIT_EARLY = 98
EXIT_OLD_PYTHON = 99
#: the agent's own floor; ranks need 3.10
OLDEST_AGENT_PYTHON = (3, 8)

# Valid from Python 2.7 on, so that a too old interpreter can say so.
_PROGRAM = """
import hashlib, os, sys
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
import io, shutil, stat, tempfile, zipfile
sha = take(64).decode()
def private(path):
    about = os.lstat(path)
    return stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and not about.st_mode & 0o022
root = os.path.join(os.path.expanduser("~"), ".cache", "dcu-launch")
try:
    os.makedirs(root, mode=0o700, exist_ok=True)
    if not private(root) or not os.access(root, os.W_OK):
        raise OSError
except OSError:
    root = tempfile.mkdtemp(prefix="dcu-launch-")
home = os.path.join(root, sha)
if os.path.isdir(home) and private(home):
    say("HAVE")
else:
    say("NEED")
    packed = take(int(take(8), 16))
    if not hashlib.sha256(packed).hexdigest() == sha:
        os._exit(98)
    aside = tempfile.mkdtemp(dir=root)
    zipfile.ZipFile(io.BytesIO(packed)).extractall(aside)
    os.chmod(aside, 0o755)
    try:
        os.rename(aside, home)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
token = take(32).decode()
sys.path.insert(0, home)
sys.dont_write_bytecode = False
from launcher.node.agent import main
main(home, token)
"""


@dataclass(frozen=True, slots=True)
class Payload:
    """The zip of ``launcher/`` and its sha256 in hex."""

    sha256: str
    packed: bytes

    @property
    def greeting(self) -> bytes:
        """What the program reads first: which code is wanted."""
        return self.sha256.encode("ascii")

    @property
    def delivery(self) -> bytes:
        """What it reads after NEED: length in 8 hex digits, then the zip."""
        return b"%08x" % len(self.packed) + self.packed


@cache
def make_payload() -> Payload:
    """Zip our own package, the same bytes each time for the same sources."""
    package = Path(__file__).resolve().parent.parent
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in sorted(package.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
                name = (Path("launcher") / path.relative_to(package)).as_posix()
                archive.writestr(
                    zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), path.read_bytes(), zipfile.ZIP_DEFLATED
                )
    packed = buffer.getvalue()
    return Payload(hashlib.sha256(packed).hexdigest(), packed)


def program() -> str:
    """The short program as one line for ``python -c``: base64, since every login shell quotes in its own way."""
    packed = base64.b64encode(zlib.compress(_PROGRAM.encode("ascii"), 9)).decode("ascii")
    return f'exec(__import__("zlib").decompress(__import__("base64").b64decode("{packed}")))'


def interpreters(python: str | None) -> list[str]:
    """Interpreters to try for the agent, in order: the named one, the head's own path, ``python3``, ``python``."""
    named = [python] if python else []
    return [*named, sys.executable, "python3", "python"]


def shell_line(python: str | None) -> str:
    """One line that any login shell (sh, bash, zsh, csh, fish) hands to sh unchanged."""
    find = (
        'for p in "$@"; do case $p in "~/"*) p=$HOME/${p#"~/"};; esac; '
        'command -v "$p" >/dev/null 2>&1 && exec "$p" -u -c "$0"; done; '
        f'echo; echo "DCU-LAUNCH NONE $*"; exit {EXIT_NO_PYTHON}'
    )
    return " ".join(
        ["exec", "sh", "-c", *(shlex.quote(word) for word in (find, program(), *interpreters(python)))]
    )
