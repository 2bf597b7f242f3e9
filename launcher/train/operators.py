"""Does each operator that training needs work on each card, forward and backward? For ``dcu-launch check --ops``.

Runs on a node. One process imports torch and touches no card; from it a child is forked for each card and operator, so
that one that crashes or hangs ends nothing but itself. Every result is held against float64 on the CPU. Facts are
marked lines, as in ``torch_facts``.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from launcher.train.operator_cases import OPERATORS
from launcher.train.torch_facts import tell

#: relative error of a result or a gradient that is rounding and not a fault
TOLERANCE = {"fp32": 5e-3, "fp16": 2e-2, "bf16": 6e-2}
OPERATOR_LIMIT_S = 60.0
#: compiling takes its time, above all the first time
LIMITS_S = {"compile": 240.0}

Row = dict[str, Any]


def main(argv: Sequence[str] = ()) -> int:
    """Try all operators on all cards (on the CPU where there is none), and tell a row for each format.

    Args:
        argv: names of operators to try; none: all.
    """
    import torch

    names = [name for name in argv if name in OPERATORS] or list(OPERATORS)
    count = int(
        _in_child(lambda: [{"count": torch.cuda.device_count()}], OPERATOR_LIMIT_S)[0][0].get("count", 0)
    )
    devices = [f"cuda:{index}" for index in range(count)] or ["cpu"]
    lock = threading.Lock()

    def work(device: str) -> None:
        for name in names:
            for row in try_operator(name, device):
                with lock:
                    tell(operator=row)
        rows, died = _in_child(lambda: [_choices(device)], OPERATOR_LIMIT_S)
        with lock:
            tell(choice={"device": device, **(rows[0] if rows else {"error": died})})

    # the forks come one after another from a process without threads of torch's own; cards work side by side
    threads = [threading.Thread(target=work, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


def try_operator(name: str, device: str) -> list[Row]:
    """A row for each format: ``state`` is works, wrong, missing, failed or crashed; ``detail`` says more."""
    limit = LIMITS_S.get(name, OPERATOR_LIMIT_S)
    rows, died = _in_child(lambda: (_try_format(name, device, dtype) for dtype in TOLERANCE), limit)
    told = {row["dtype"] for row in rows}
    for dtype in [dtype for dtype in TOLERANCE if dtype not in told]:
        rows.append({"name": name, "device": device, "dtype": dtype, "state": "crashed", "detail": died})
        died = "not tried: its process had ended" if died else died
    return rows


def _try_format(name: str, device: str, dtype: str) -> Row:
    import torch

    row: Row = {"name": name, "device": device, "dtype": dtype, "state": "works", "detail": ""}
    start = time.monotonic()
    try:
        if device != "cpu":
            torch.cuda.set_device(device)
        error = compare_with_reference(OPERATORS[name], device, dtype)
        row["error"] = float(f"{error:.2e}") if math.isfinite(error) else None
        if not error <= TOLERANCE[dtype]:  # a NaN is wrong too
            row.update(
                state="wrong", detail=f"off by {error:.1e} of its size, {TOLERANCE[dtype]:g} is rounding"
            )
    except NotImplementedError as problem:
        row.update(state="missing", detail=str(problem).split("\n")[0][:200])
    except Exception as problem:
        row.update(state="failed", detail=f"{type(problem).__name__}: {problem}".split("\n")[0][:200])
    row["seconds"] = round(time.monotonic() - start, 3)
    return row


def compare_with_reference(case: Callable[..., Any], device: str, dtype: str) -> float:
    """The largest relative error of results and gradients against float64 on the CPU."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype]
    expected = case("cpu", torch.float64)
    found = case(device, kind)
    worst = 0.0
    for want, have in zip(expected, found, strict=True):
        want, have = want.detach().double().cpu(), have.detach().double().cpu()
        size = float(want.norm()) or 1.0
        error = float((have - want).norm()) / size
        worst = error if error != error else max(worst, error)
        if worst != worst:
            return worst
    return worst


def _choices(device: str) -> Row:
    """What recipes choose on this card, by the same probes as theirs."""
    import torch

    from launcher.base.config import Recipe
    from launcher.train import precision

    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    chosen = precision.choose_precision("auto", place)
    attention = precision.choose_attention(Recipe(), place, precision.torch_dtype(chosen.value))
    return {
        "precision": chosen.value,
        "precision_why": chosen.reason,
        "attention": attention.value,
        "attention_why": attention.reason,
    }


def _in_child(work: Callable[[], Any], limit_s: float) -> tuple[list[Row], str]:
    """The rows that ``work`` yields in a forked child, and how it died, if it did."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            for row in work():
                os.write(writing, json.dumps(row).encode() + b"\n")
            code = 0
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        finally:
            os._exit(code)
    os.close(writing)
    data, late = _read_until(reading, time.monotonic() + limit_s)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    rows = [json.loads(line) for line in data.split(b"\n")[:-1]]
    if late:
        return rows, f"no answer within {limit_s:.0f} s"
    if os.WIFSIGNALED(status):
        return rows, f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return rows, f"ended with code {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else ""


def _read_until(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    data = b""
    try:
        while True:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return data, True
            piece = os.read(descriptor, 65536)
            if not piece:
                return data, False
            data += piece
    finally:
        os.close(descriptor)
