"""Data parallelism over the cards of one host: the same recipe on 1, 2, 4, 8 of them, started by dcu-launch.

    python -m bench.scaling --shape 7b                              every card there is
    python -m bench.scaling --shape demo --cards 1,2 --steps 6      gloo ranks on a CPU

Weak scaling: the same rows a card, so n cards take n times the rows a step; what n cards lose beside one is communication
and waiting. Strong scaling in float32: the same rows a step in all, so that the losses must be the same for any number of
cards. Models are made of their shape with random weights. Beside it: the first all-reduce, and the bus bandwidth as
``dcu-launch check --comm`` measures it. NVLink multicast stays off (NCCL_NVLS_ENABLE=0) unless the environment says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DCU_LAUNCH = (sys.executable, "-m", "launcher.cli")
ROWS = ROOT / "examples" / "dcu_instructions.jsonl"
ENGINES = {
    "ddp": [],
    **{f"zero{stage}": ["engine=deepspeed", f"deepspeed.zero_stage={stage}"] for stage in (1, 2, 3)},
}
LIMIT_S = 1200.0


@dataclass
class Work:
    """What is measured.

    Attributes:
        rows: a card and step.
        warmup: steps that are not counted.
    """

    model: str
    folder: Path
    rows: int
    steps: int
    warmup: int
    more: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)


def run_recipe(work: Work, cards: int, rows: int, words: list[str], num_steps: int) -> list[dict[str, Any]]:
    """The steps of a run over so many cards: rows of its metrics.jsonl; raises SystemExit when it fails."""
    run_dir = work.folder / f"run-{time.monotonic_ns()}"
    argv = [
        *DCU_LAUNCH, *work.options, "--nproc", str(cards), "--run-dir", str(run_dir), str(ROOT / "configs" / "lora.yaml"),
        f"model.path={work.model}", f"data.path={ROWS}", "data.eval_fraction=0.0", f"train.max_steps={num_steps}",
        f"train.global_batch_size={rows}", "train.seed=7", *words, *work.more,
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=work.folder)
    if done.returncode:
        raise SystemExit(
            f"{' '.join(argv)}: exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        )
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def measure_weak(work: Work, cards: int, words: list[str]) -> dict[str, float]:
    """Median step in ms and tokens/s a card, each card with its own rows."""
    steps = run_recipe(work, cards, work.rows * cards, words, work.warmup + work.steps)[work.warmup :]
    return {
        "step_ms": statistics.median(row["step_s"] for row in steps) * 1000,
        "tokens_per_s_a_card": statistics.median(row["tokens_per_s"] for row in steps) / cards,
    }


def losses_of(work: Work, cards: int, rows: int) -> list[float]:
    """Losses in float32 of the same rows, whatever the number of cards."""
    return [row["loss"] for row in run_recipe(work, cards, rows, ["train.precision=fp32"], 4)]


def first_all_reduce(work: Work, cards: int) -> float:
    """Seconds from the command to the first all-reduce of a script over all cards."""
    script, out = work.folder / "first.py", work.folder / f"first-{cards}"
    script.write_text(
        "import sys, time, torch, torch.distributed as dist\n"
        "card = torch.cuda.is_available()\n"
        "dist.init_process_group('nccl' if card else 'gloo')\n"
        "device = f'cuda:{dist.get_rank()}' if card else 'cpu'\n"
        "card and torch.cuda.set_device(device)\n"
        "total = torch.ones(1, device=device); dist.all_reduce(total); assert total.item() == dist.get_world_size()\n"
        "moment = time.monotonic()\n"
        "dist.get_rank() or open(sys.argv[1], 'w').write(str(moment))\n"
        "dist.destroy_process_group()\n"
    )
    begun = time.monotonic()
    argv = [*DCU_LAUNCH, "--nproc", str(cards), "--run-dir", str(out) + ".run", str(script), str(out)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=work.folder)
    if done.returncode:
        raise SystemExit(f"first all-reduce: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return float(out.read_text()) - begun


def bus_bandwidth(cards: int) -> Any:
    """What ``check --comm`` says of so many cards; its findings where it has no figure."""
    argv = [*DCU_LAUNCH, "check", "--nproc", str(cards), "--comm", "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr[-500:]}
    return told.get("collectives") or told.get("bandwidth") or told.get("findings")


def make_model(shape: str, folder: Path) -> str:
    """A model folder of a shape with random weights; ``demo`` needs none."""
    if shape == "demo":
        return "demo"
    program = (
        "import sys, torch; from bench.train_arms import Work, make_model; from launcher.train.data import demo_file\n"
        "from transformers import AutoTokenizer\n"
        "device = 'cuda' if torch.cuda.is_available() else 'cpu'\n"
        "work = Work(sys.argv[1], device, 1, 1, 1, 0, 8192)\n"
        "make_model(work, torch.bfloat16, 'sdpa').save_pretrained(sys.argv[2])\n"
        "AutoTokenizer.from_pretrained(demo_file('')).save_pretrained(sys.argv[2])\n"
    )
    target = folder / "model"
    subprocess.run([sys.executable, "-c", program, shape, str(target)], cwd=ROOT, check=True)
    return str(target)


def count_cards() -> int:
    """Cards that torch sees, asked in a process of its own; 0 on a CPU."""
    program = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    return int(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    )


def report(work: Work, numbers: list[int], methods: list[str], engines: list[str]) -> dict[str, Any]:
    """Measure everything, print a line each, and return all figures."""
    figures: dict[str, Any] = {"weak": [], "losses": {}, "first_all_reduce_s": {}, "bus": {}}
    for method in methods:
        for engine in engines:
            alone: dict[str, float] = {}
            for cards in numbers:
                found = measure_weak(work, cards, [f"method={method}", *ENGINES[engine]])
                alone = alone or found
                share = found["tokens_per_s_a_card"] / alone["tokens_per_s_a_card"]
                figures["weak"].append(
                    {"method": method, "engine": engine, "cards": cards, "share": share, **found}
                )
                print(
                    f"{method} {engine} {cards} card(s): {found['step_ms']:.0f} ms a step, "
                    f"{found['tokens_per_s_a_card']:,.0f} tokens/s a card, {share:.3f} of {numbers[0]}", flush=True,
                )  # fmt: skip
    rows = work.rows * max(numbers)
    for cards in numbers:
        figures["losses"][cards] = losses_of(work, cards, rows)
        first = figures["losses"][numbers[0]]
        away = max(abs(a - b) / b for a, b in zip(figures["losses"][cards], first, strict=True))
        print(
            f"fp32, {rows} rows a step, {cards} card(s): losses differ by {away:.1e} from {numbers[0]}",
            flush=True,
        )
        figures["first_all_reduce_s"][cards] = first_all_reduce(work, cards)
        print(f"first all-reduce, {cards} rank(s): {figures['first_all_reduce_s'][cards]:.2f} s", flush=True)
        if cards > 1:
            figures["bus"][cards] = bus_bandwidth(cards)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shape", default="7b", help="of bench.train, or demo")
    parser.add_argument(
        "--cards", help="numbers, as in 1,2,4,8; default: 1 and its doubles up to what is there"
    )
    parser.add_argument("--methods", default="lora,freeze")
    parser.add_argument("--engines", default="ddp", help=f"of {','.join(ENGINES)}")
    parser.add_argument("--rows", type=int, default=72, help="a card and step")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--json", help="write all figures to this file")
    parser.add_argument(
        "--option", action="append", default=[], help="a word for dcu-launch, as in --option=--allow=CODE"
    )
    parser.add_argument("more", nargs="*", help="key=value for the recipe")
    asked = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    there = count_cards() or 2
    numbers = (
        [int(text) for text in asked.cards.split(",")]
        if asked.cards
        else [n for n in (1, 2, 4, 8) if n <= there]
    )
    with tempfile.TemporaryDirectory() as folder:
        work = Work(
            make_model(asked.shape, Path(folder)),
            Path(folder),
            asked.rows,
            asked.steps,
            asked.warmup,
            asked.more,
        )
        figures = report(work, numbers, asked.methods.split(","), asked.engines.split(","))
    print(json.dumps(figures["bus"]))
    if asked.json:
        Path(asked.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
