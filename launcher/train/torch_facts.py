"""What torch says of itself and of each card. Runs on a node, in a process of its own or in a recipe's ranks.

The process is for ``dcu-launch check``, and stands beside the ranks of scripts. Facts come as marked JSON lines, each as
soon as it is known: a card that crashes the process leaves what came before, and ``trying`` names it. Kept to Python 3.8,
so that an old environment can be looked at too.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

MARK = "DCU-FACT "


def tell(**facts: Any) -> None:
    """Print some facts."""
    sys.stdout.write(MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] = ()) -> int:
    """Import torch and tell all that it knows; an error is told too, and gives 1.

    Args:
        argv: ``gently``: leave the processors to whoever else wants them.
    """
    if "gently" in argv:
        give_way()
    start = time.monotonic()
    try:
        import torch
    except BaseException as error:  # an extension may raise anything, and that is the answer
        tell(error=describe_error(error))
        return 1
    tell(**version_facts(torch))
    tell(seconds=round(time.monotonic() - start, 2))
    try:
        tell(**library_facts(torch))
        _tell_cards(torch)
    except Exception as error:
        tell(error=describe_error(error).split("\n")[0])
        traceback.print_exc()
        return 1
    return 0


def give_way() -> None:
    """Run only while nobody else does: ranks that start beside this process must not wait for it."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        # a session of its own is a scheduling group of its own, where the kernel makes such groups
        with open("/proc/self/autogroup", "w") as file:
            file.write("19")
    except OSError:
        pass


def describe_error(error: BaseException) -> str:
    """Its type and words."""
    return f"{type(error).__name__}: {error}"


def version_facts(torch: Any) -> dict[str, Any]:
    """Which torch this is."""
    return {"version": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda}


def library_facts(torch: Any) -> dict[str, Any]:
    """Cards in sight, and the RCCL or NCCL that torch was compiled against beside the one in this process's memory."""
    available = bool(torch.cuda.is_available())
    facts: dict[str, Any] = {
        "available": available,
        "device_count": torch.cuda.device_count() if available else 0,
    }
    if torch.version.hip is None and torch.version.cuda is None:
        return facts
    facts["archs"] = torch.cuda.get_arch_list()
    try:
        compiled = torch.cuda.nccl.version()
        facts["compiled_nccl"] = ".".join(str(part) for part in compiled)
    except (AttributeError, RuntimeError):
        pass
    path = loaded_library("librccl", "libnccl")
    if path:
        number = ctypes.c_int(0)
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
        facts.update(loaded_path=path, loaded_nccl=format_nccl(number.value))
    return facts


def card_facts(torch: Any, devices: Sequence[Any]) -> dict[str, Any]:
    """Names and architectures of some cards."""
    if not devices:
        return {}
    return {
        "device_names": [torch.cuda.get_device_name(device) for device in devices],
        "card_archs": sorted({_arch(torch, device) for device in devices}),
    }


def rank_facts(local_rank: int, say: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """All of the above for the card of one rank, of its own process; an error is a fact too.

    Args:
        say: is given what is known before anything that may end the process: the import, and the operation.
    """
    say({})
    try:
        import torch
    except BaseException as error:
        return {"error": describe_error(error)}
    facts = version_facts(torch)
    try:
        facts.update(library_facts(torch))
        own = [torch.device("cuda", local_rank)] if local_rank < facts["device_count"] else []
        facts.update(card_facts(torch, own))
        if facts["device_count"] and not own:
            return facts  # there is no card for this rank, which it is told when it wants one
        name = str(local_rank) if own else "cpu"
        say({**facts, "trying": name})
        return {**facts, "operation": {name: check_product(torch, *(own or [torch.device("cpu")]))}}
    except Exception as error:
        return {**facts, "error": describe_error(error).split("\n")[0]}


def loaded_library(*stems: str) -> str | None:
    """The file of a library that this process has in its memory."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.split(None, 5)[5].strip() if line.count("/") else ""
            if path.rsplit("/", 1)[-1].startswith(stems):
                return path
    return None


def format_nccl(code: int) -> str:
    """22203 -> 2.22.3."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def _tell_cards(torch: Any) -> None:
    """Name and architecture of each card, and whether a small product and its gradient are right on it."""
    devices = (
        [torch.device("cuda", n) for n in range(torch.cuda.device_count())]
        if torch.cuda.is_available()
        else []
    )
    tell(**card_facts(torch, devices))
    for device in devices or [torch.device("cpu")]:
        name = str(device.index) if devices else "cpu"
        tell(trying=name)
        tell(operation={name: check_product(torch, device)})
    tell(trying=None)


def _arch(torch: Any, device: Any) -> str:
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "gcnArchName", "") or f"sm_{properties.major}{properties.minor}")


def check_product(torch: Any, device: Any) -> str:
    """What is wrong with a product and its gradient; empty when they are right."""
    try:
        left = torch.full((64, 64), 0.5, device=device, requires_grad=True)
        total = (left @ left).sum()
        total.backward()
        if float(total.detach()) != 64.0**3 * 0.25 or float(left.grad[0, 0]) != 64.0:
            return "wrong result"
    except RuntimeError as error:
        return str(error).split("\n")[0]
    return ""
