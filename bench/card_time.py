"""What a card keeps up, and what a step's time on it goes into."""

from __future__ import annotations

import statistics
import time
from typing import Any


def measure_matmul(device: str, size: int, seconds: float) -> float:
    """TFLOP/s that products of [size, size] in bf16 keep up for some seconds: what a card's power allows, not its peak."""
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    rates, begun = [], time.perf_counter()
    while not rates or time.perf_counter() - begun < seconds:
        wait(device)
        started = time.perf_counter()
        for _ in range(20):
            left @ right
        wait(device)
        rates.append(20 * 2 * size**3 / (time.perf_counter() - started) / 1e12)
    return statistics.median(rates[len(rates) // 3 :])


def wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def share_time(step: Any, seconds: float) -> dict[str, float]:
    """What one step's time goes into, in shares of ``seconds``: products, attention, other kernels, any of them."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    spent = {"products": 0.0, "attention": 0.0, "other": 0.0}
    busy, end = 0.0, 0.0
    for event in sorted(profile.events(), key=lambda one: one.time_range.start):
        name = event.name.lower()
        if "compiled" in name or name.startswith("## "):  # a span around kernels, no kernel
            continue
        kind = "products" if any(word in name for word in ("gemm", "nvjet", "cublas", "splitk")) else "other"
        kind = "attention" if any(word in name for word in ("flash", "fmha", "attention")) else kind
        spent[kind] += event.time_range.end - event.time_range.start
        busy += max(0.0, event.time_range.end - max(end, event.time_range.start))
        end = max(end, event.time_range.end)
    # spans around kernels count as busy, once; what is neither product nor attention is the rest of it
    spent["other"] = busy - spent["products"] - spent["attention"]
    return {kind: value / 1e6 / seconds for kind, value in {**spent, "busy": busy}.items()}
