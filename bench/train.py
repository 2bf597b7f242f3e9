"""Fine-tuning speed beside the usual recipe (Trainer + peft, rows padded to 512), on the same rows, in one call.

    python -m bench.train --shape 7b                          a card: all usual arms
    python -m bench.train --shape 1.5b --arms r0,compiled
    python -m bench.train --shape tiny --device cpu --rows 8 --arms r0,plain,freeze

Models are made of their shape, with random weights; rows have the lengths of an Alpaca-like set (mean 114 tokens). Each
arm has a process of its own. MFU is the least that must be computed over what products of [8192, 8192] keep up in this
very call, the mean of before and after. The first step's loss and gradient norm are shown too: arms that train the same
must agree in them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from bench.forked import in_process
from bench.train_arms import ARMS, SHAPES, Work, run_arm

USUAL = "r0,plain,varlen,liger,compiled,freeze,freeze-compiled"
COLUMNS = ("arm", "ms/step", "tokens/s", "MFU", "GiB", "x r0", "loss", "grad norm")


def main() -> None:
    """Measure and print."""
    asked = parse()
    device = asked.device or find_device()
    work = Work(asked.shape, device, asked.rows, asked.steps, asked.warmup, asked.pack, asked.room)
    results: dict[str, dict[str, Any]] = {}
    failed = False
    for arm in ("matmul", *asked.arms.split(","), "matmul again"):  # a card that has worked is slower
        results[arm] = in_process(run_arm, work, arm)
        if "error" in results[arm]:
            failed = True
            print(f"{arm}: {results[arm]['error']}", file=sys.stderr, flush=True)
        for note in results[arm].get("notes", ()):
            print(f"{arm}: {note}", flush=True)
        if results[arm].get("shares"):
            print(
                f"{arm}: " + ", ".join(f"{k} {v:.0%}" for k, v in results[arm]["shares"].items()), flush=True
            )
        if "ms" in results[arm]:
            print(
                f"{arm}: {results[arm]['ms']:.0f} ms, {results[arm]['tokens_per_s']:.0f} tokens/s", flush=True
            )
    print(describe(work, results))
    if asked.json:
        with open(asked.json, "w", encoding="utf-8") as file:
            json.dump(
                {"work": [getattr(work, name) for name in Work.__slots__], "arms": results}, file, indent=1
            )
    raise SystemExit(1 if failed else 0)


def parse() -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--arms", default=USUAL, help=f"of {', '.join(ARMS)}")
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--rows", type=int, default=72, help="a step, in every arm")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument(
        "--pack", type=int, default=0, help="draw each step's rows until they fill this many tokens"
    )
    parser.add_argument("--room", type=int, default=8192, help="train.max_tokens_per_card")
    parser.add_argument("--json", help="write all figures to this file")
    asked = parser.parse_args()
    if unknown := [arm for arm in asked.arms.split(",") if arm not in ARMS]:
        parser.error(f"no such arm: {', '.join(unknown)}; there are {', '.join(ARMS)}")
    return asked


def find_device() -> str:
    """A card if there is one, asked without touching it: arms are forked from this process."""
    import torch

    return "cuda" if torch.cuda.device_count() else "cpu"


def describe(work: Work, results: dict[str, dict[str, Any]]) -> str:
    """A table of all arms, for Markdown."""
    rates = [
        found["tflops"] for arm, found in results.items() if arm.startswith("matmul") and "tflops" in found
    ]
    rate = statistics.mean(rates) if rates else 0.0
    base = results.get("r0", {}).get("tokens_per_s")
    measured = {arm: found for arm, found in results.items() if "ms" in found}
    mean = next((found["tokens"] for found in measured.values()), 0)
    lines = [
        f"{work.shape} on {work.device}, {work.rows} rows a step ({mean:.0f} tokens), {work.steps} steps; "
        f"products keep up {' and '.join(f'{one:.0f}' for one in rates)} TFLOP/s before and after",
        "| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS),
    ]  # fmt: skip
    for arm, found in measured.items():
        cells = (
            arm, f"{found['ms']:.0f}", f"{found['tokens_per_s']:.0f}", f"{found['tflops'] / rate:.1%}" if rate else "-",
            f"{found['gib']:.1f}" if "gib" in found else "-",
            f"{found['tokens_per_s'] / base:.2f}" if base else "-", f"{found['loss']:.4f}", f"{found['grad_norm']:.4f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
