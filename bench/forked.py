"""One measurement in a forked process, so that none meets another's memory or patches."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any


def in_process(measure: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What ``measure`` returns, or ``{"error": why}`` when it raised or its process died."""
    import peft  # noqa: F401  # imported once, before the fork
    import transformers  # noqa: F401

    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(measure, arguments, theirs))
    process.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv()
    except EOFError:
        result = {"error": "the process ended without a result"}
    process.join()
    return result


def _child(measure: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], pipe: Any) -> None:
    try:
        pipe.send(measure(*arguments))
    except Exception as error:
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
