"""Open a file that somebody else may have put there: a pipe or a device in its place is an error, not a wait without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: str | Path) -> BinaryIO:
    """The file, for reading bytes; raises OSError also for what is no regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def read_text(path: str | Path) -> str:
    """The file's text, whatever is no UTF-8 in it replaced; raises OSError as ``open_regular``."""
    with open_regular(path) as file:
        return file.read().decode("utf-8", "replace")
