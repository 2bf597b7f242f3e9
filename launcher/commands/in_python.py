"""A module of ours that needs the training stack, in the interpreter that has it. Runs on the head, which never imports torch.

In: an interpreter, a module of ``launcher`` with a ``main(argv)``, its words. Out: nothing; this process becomes that one.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import launcher
from launcher.base.errors import UsageError

# Our package by its path alone: a PYTHONPATH would bring whatever else lies beside it into another environment.
_START = """
import sys
if sys.version_info < (3, 10):
    found = (sys.executable, sys.version_info[0], sys.version_info[1])
    sys.stderr.write("dcu-launch: error: %s is Python %d.%d; 3.10 or newer is needed\\n" % found)
    sys.exit(2)
if sys.path[0] == "":
    del sys.path[0]
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
folder, name = sys.argv[1:3]
spec = spec_from_file_location("launcher", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["launcher"] = package = module_from_spec(spec)
spec.loader.exec_module(package)
sys.exit(import_module(name).main(sys.argv[3:]))
"""


def become(python: str | None, module: str, words: Sequence[str]) -> NoReturn:
    """Replace this process by ``module`` with these words; terminal, signals and exit code are its own from here on.

    Args:
        python: an interpreter by path or name; None takes this one.

    Raises:
        UsageError: there is no such interpreter, or it cannot be started.
    """
    path = find_python(python)
    folder = str(Path(launcher.__file__).resolve().parent)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(path, [path, "-c", _START, folder, module, *words])  # noqa: S606  no shell is wanted
    except OSError as error:
        raise UsageError(f"--python {python}: {error.strerror}") from None


def find_python(python: str | None) -> str:
    """The path of an interpreter; raises UsageError when there is none of that name."""
    path = shutil.which(os.path.expanduser(python)) if python else sys.executable
    if not path:
        raise UsageError(f"--python {python}: there is no such program")
    return path
