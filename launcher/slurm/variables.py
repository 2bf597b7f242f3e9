"""Variables of a job on their way to it -> the text of two files. Pure. Runs on the head.

sbatch's own ``--export=NAME=VALUE`` cuts values at commas and shows them in ``ps``; a file that only the user can read does
neither.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from launcher.base.env_file import EnvOp
from launcher.base.errors import UsageError
from launcher.base.variable import why_not_sent

_ESCAPES = str.maketrans({"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"})


def write_variables(environ: Mapping[str, str]) -> str:
    """Lines of shell that set what dcu-launch hands on by pattern, as it is here; empty where there is nothing."""
    sent = [name for name in sorted(environ) if not why_not_sent(name)]
    return "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in sent)


def write_env_file(ops: Sequence[EnvOp]) -> str:
    """An env file, as ``--env-file`` reads it, of these operations in order.

    Raises:
        UsageError: values that are not UTF-8 text.
    """
    lines, wrong = [], []
    for op in ops:
        if op.operation == "unset":
            lines.append(f"{op.name}-=\n")
            continue
        if not _is_text(op.value):
            wrong.append(f"--env {op.name}: the value is not UTF-8 text")
        quoted = f"$'{op.value.translate(_ESCAPES)}'"
        lines.append(f"{op.name}{'+' if op.operation == 'prepend' else ''}={quoted}\n")
    if wrong:
        raise UsageError("\n".join(wrong))
    return "".join(lines)


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
