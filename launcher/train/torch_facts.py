"""What torch says of itself and of each card, for ``dcu-launch check``. Runs on a node, in a process of its own.

Facts come as marked JSON lines, each as soon as it is known: a card that crashes the process leaves what came before,
and ``trying`` names it. Kept to Python 3.8, so that an old environment can be looked at too.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

MARK = "DCU-FACT "


def tell(**facts: Any) -> None:
    """Print some facts."""
    sys.stdout.write(MARK + json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(argv: Sequence[str] = ()) -> int:
    """Import torch and tell all that it knows; an error is told too, and gives 1."""
    start = time.monotonic()
    try:
        import torch
    except BaseException as error:  # an extension may raise anything, and that is the answer
        tell(error=f"{type(error).__name__}: {error}")
        return 1
    tell(version=torch.__version__, hip=torch.version.hip, cuda=torch.version.cuda)
    tell(seconds=round(time.monotonic() - start, 2))
    try:
        _tell_libraries(torch)
        _tell_cards(torch)
    except Exception as error:
        tell(error=f"{type(error).__name__}: {error}".split("\n")[0])
        traceback.print_exc()
        return 1
    return 0


def _tell_libraries(torch: Any) -> None:
    """The RCCL or NCCL that torch was compiled against, and the one that is in this process's memory."""
    available = bool(torch.cuda.is_available())
    tell(available=available, device_count=torch.cuda.device_count() if available else 0)
    if torch.version.hip is None and torch.version.cuda is None:
        return
    tell(archs=torch.cuda.get_arch_list())
    try:
        compiled = torch.cuda.nccl.version()
        tell(compiled_nccl=".".join(str(part) for part in compiled))
    except (AttributeError, RuntimeError):
        pass
    path = loaded_library("librccl", "libnccl")
    if path:
        number = ctypes.c_int(0)
        ctypes.CDLL(path).ncclGetVersion(ctypes.byref(number))
        tell(loaded_path=path, loaded_nccl=format_nccl(number.value))


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
    if devices:
        tell(device_names=[torch.cuda.get_device_name(device) for device in devices])
        tell(card_archs=sorted({_arch(torch, device) for device in devices}))
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
