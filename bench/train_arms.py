"""What bench.train measures: one arm, from a model made of its shape alone to its times. Runs in a process of its own.

``r0`` is the usual recipe: transformers' Trainer with peft, each row padded to 512, 4 rows at a time, the rest of the
batch accumulated. All other arms are this project's own step, with switches of the recipe.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import Any

from bench.card_time import measure_matmul, share_time, wait
from launcher.base.config import Recipe, from_dict
from launcher.train.data import Tokens, make_tokens
from launcher.train.pack import rows_of_step
from launcher.train.template import Encoded

SEED = 42
#: rows of the usual recipe are padded to this; none is longer
PADDED = 512
#: and this many go through at once
R0_ROWS = 4

#: hidden, intermediate, blocks, heads, key heads, vocabulary, tied: Qwen2.5's, and one for tests
SHAPES = {
    "7b": (3584, 18944, 28, 28, 4, 152064, False),
    "1.5b": (1536, 8960, 28, 12, 2, 151936, True),
    "0.5b": (896, 4864, 24, 14, 2, 151936, True),
    "tiny": (64, 128, 3, 4, 2, 320, False),
}

_PLAIN = {"model": {"attention": "sdpa"}, "train": {"compile": "never", "kernels": "torch"}}
_VARLEN = {"train": {"compile": "never", "kernels": "torch"}}
_LIGER = {"train": {"compile": "never", "kernels": "liger"}}
_COMPILED = {"train": {"compile": "always"}}
_FREEZE = {"method": "freeze"}
#: arm -> changed keys of the recipe
ARMS: dict[str, tuple[dict[str, Any], ...]] = {
    "r0": ({},),
    "plain": (_PLAIN,),
    "plain-1024": (_PLAIN, {"data": {"pack_length": 1024}}),
    "plain-model": (_PLAIN, {"train": {"kernels": "model"}}),
    "plain-peft": (_PLAIN, {"lora": {"light": False}}),
    "varlen": (_VARLEN,),
    "liger": (_LIGER,),
    "compiled": (_COMPILED,),
    "compiled-sdpa": (_COMPILED, {"model": {"attention": "sdpa"}}),
    "freeze": (_VARLEN, _FREEZE),
    "freeze-liger": (_LIGER, _FREEZE),
    "freeze-compiled": (_COMPILED, _FREEZE),
}


@dataclass(frozen=True, slots=True)
class Work:
    """What all arms do.

    Attributes:
        shape: a key of SHAPES.
        device: ``cuda`` or ``cpu``.
        rows: rows a step, over all micro-batches.
        steps: measured, after ``warmup`` more.
        pack: each step's rows are drawn anew until their tokens fill 99.5 to 100% of this; 0: as they come.
        room: tokens of a micro-batch.
    """

    shape: str
    device: str
    rows: int
    steps: int
    warmup: int
    pack: int
    room: int

    @property
    def total(self) -> int:
        """All steps."""
        return self.steps + self.warmup


def draw_rows(work: Work) -> Tokens:
    """Rows like Alpaca's: 114 tokens in the mean, at most 512, a little more than half of them learnt."""
    drawn = random.Random(SEED)  # noqa: S311  # lengths of rows are no secret
    vocabulary = SHAPES[work.shape][5]
    rows: list[Any] = [None] * (work.rows * work.total)
    for step in range(1, work.total + 1):
        lengths = _draw_lengths(work, drawn)
        for place, (prompt, answer) in zip(
            rows_of_step(step, len(rows), work.rows, SEED), lengths, strict=True
        ):
            ids = [drawn.randrange(vocabulary) for _ in range(prompt + answer)]
            rows[place] = Encoded(ids, [False] * prompt + [True] * answer)
    return make_tokens(rows)


def _draw_lengths(work: Work, drawn: random.Random) -> list[tuple[int, int]]:
    while True:
        lengths = []
        for _ in range(work.rows):
            prompt = min(150, max(14, round(drawn.gauss(48, 18))))
            lengths.append((prompt, min(PADDED - prompt, max(4, round(drawn.lognormvariate(3.93, 0.75))))))
        total = sum(map(sum, lengths))
        if not work.pack or 0.995 * work.pack <= total <= work.pack:
            return lengths


def make_recipe(work: Work, arm: str) -> Recipe:
    """The recipe of an arm."""
    values: dict[str, Any] = {
        "model": {"path": work.shape}, "data": {"path": "drawn"}, "lora": {"dropout": 0.0},
        "train": {
            "max_steps": work.total, "global_batch_size": work.rows, "max_tokens_per_card": work.room,
            "learning_rate": 1e-4, "scheduler": "constant", "warmup_ratio": 0.0, "seed": SEED,
        },
    }  # fmt: skip
    for change in ARMS[arm]:
        for key, value in change.items():
            values[key] = {**values.get(key, {}), **value} if isinstance(value, dict) else value
    return from_dict(values)


def make_model(work: Work, dtype: Any, attention: str) -> Any:
    """A model of the shape, its weights drawn on the device; the same ones each time."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    hidden, intermediate, blocks, heads, key_heads, vocabulary, tied = SHAPES[work.shape]
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=blocks,
        num_attention_heads=heads, num_key_value_heads=key_heads, tie_word_embeddings=tied,
        max_position_embeddings=2048, bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(SEED)
    with torch.device(work.device):
        causal = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    causal.config.use_cache = False
    return causal


def count_flops(work: Work, arm: str, num_tokens: int, num_labels: int) -> float:
    """The least that a step must compute: products with weights, of real tokens and learnt places, forward and back."""
    hidden, intermediate, blocks, heads, key_heads, vocabulary, _ = SHAPES[work.shape]
    block = hidden * hidden * (2 + 2 * key_heads / heads) + 3 * hidden * intermediate
    head = 4 * vocabulary * hidden * num_labels
    if (
        make_recipe(work, arm).method == "freeze"
    ):  # forward; gradients of inputs and weights in the last blocks
        return head + (2 * blocks + 4 * 2) * block * num_tokens
    return head + 4 * blocks * block * num_tokens


def run_arm(work: Work, arm: str) -> dict[str, Any]:
    """Measure one arm: seconds of each step, tokens, memory, the first loss and gradient norm, what was chosen."""
    import torch

    if arm.startswith("matmul"):
        large = work.device == "cuda"
        return {"tflops": measure_matmul(work.device, 8192 if large else 256, 4.0 if large else 0.1)}
    tokens = draw_rows(work)
    found = run_r0(work, tokens) if arm == "r0" else run_ours(work, arm, tokens)
    if work.device == "cuda":
        found["gib"] = torch.cuda.max_memory_allocated() / 2**30
    return {**found, **summarize(work, arm, tokens, found["seconds"])}


def summarize(work: Work, arm: str, tokens: Tokens, seconds: list[float]) -> dict[str, Any]:
    """Figures of the measured steps: the median's milliseconds, and rates over all of them."""
    steps = [
        rows_of_step(n, len(tokens.rows), work.rows, SEED) for n in range(work.warmup + 1, work.total + 1)
    ]
    num_tokens = sum(map(tokens.count_tokens, steps))
    flops = sum(count_flops(work, arm, tokens.count_tokens(r), tokens.count_labels(r)) for r in steps)
    spent = sum(seconds[work.warmup :])
    return {
        "ms": 1000 * statistics.median(seconds[work.warmup :]), "tokens_per_s": num_tokens / spent,
        "tflops": flops / spent / 1e12, "tokens": num_tokens / len(steps),
    }  # fmt: skip


def run_ours(work: Work, arm: str, tokens: Tokens) -> dict[str, Any]:
    """This project's own step; choices are made as in a run."""

    from launcher.train.loop import Progress, run_step

    setup, notes = make_setup(work, make_recipe(work, arm), tokens)
    progress, seconds, rows = Progress(), [], []
    for _ in range(work.total):
        started = time.perf_counter()
        rows.append(run_step(setup, progress))
        wait(work.device)
        seconds.append(time.perf_counter() - started)
    first, shares = rows[0], {}
    if work.device == "cuda":
        shares = share_time(lambda: run_step(setup, progress), statistics.median(seconds[work.warmup :]))
    return {
        "seconds": seconds, "loss": first["loss"], "grad_norm": first["grad_norm"], "notes": notes, "shares": shares,
    }  # fmt: skip


def make_setup(work: Work, recipe: Recipe, tokens: Tokens) -> tuple[Any, list[str]]:
    """What launcher.train.job makes of a recipe, for a model that is in no folder; and what was chosen."""
    from pathlib import Path

    import torch

    from launcher.train.channel import Channel
    from launcher.train.data import RunData, make_limits
    from launcher.train.engine import make_accelerator, make_optimizer, prepare
    from launcher.train.loop import Setup
    from launcher.train.loss import Objective, can_use_places
    from launcher.train.methods import apply_method
    from launcher.train.metrics import MetricsFile
    from launcher.train.precision import choose_attention, choose_precision, torch_dtype
    from launcher.train.speed import fit_limits, settle_attention, speed_up
    from launcher.train.stop import StopFlag
    from launcher.train.world import World

    world, device, channel = (
        World(),
        torch.device(work.device, *([0] if work.device == "cuda" else [])),
        Channel(),
    )
    precision = choose_precision(recipe.train.precision, device)
    dtype = torch_dtype(precision.value)
    attention = choose_attention(recipe, device, dtype)
    tuned = apply_method(recipe, make_model(work, dtype, attention.value))
    accelerator = make_accelerator(world, device, precision.value, False)
    causal = tuned.causal.to(device)
    with accelerator.autocast():
        by_places = can_use_places(causal, device)
        notes = [f"attention {attention.value}: {attention.reason}", settle_attention(causal, device)]
        notes += speed_up(recipe, causal, device, dtype, work.total)
    engine = prepare(
        accelerator, world, Objective(causal, by_places, dtype), make_optimizer(recipe, causal, device)
    )
    empty: Any = make_tokens([])
    limits = fit_limits(
        make_limits(recipe, work.device != "cpu", tokens), causal, device, max(tokens.lengths)
    )
    setup = Setup(
        recipe, world, device, channel, StopFlag(), Path(), RunData(None, tokens, empty, ()), limits,  # type: ignore[arg-type]
        engine, tuned, work.total, MetricsFile(None, channel, 0), {},
    )  # fmt: skip
    return setup, [note for note in notes if note]


def run_r0(work: Work, tokens: Tokens) -> dict[str, Any]:
    """The usual recipe."""
    import tempfile

    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import Trainer, TrainerCallback, TrainingArguments

    recipe = make_recipe(work, "r0")
    dtype = torch.bfloat16 if work.device == "cuda" else torch.float32
    torch.manual_seed(SEED)
    causal = make_model(work, dtype, "sdpa")
    torch.manual_seed(SEED)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = get_peft_model(
        causal,
        LoraConfig(
            task_type="CAUSAL_LM", r=recipe.lora.r, lora_alpha=recipe.lora.alpha, target_modules=targets
        ),
    )
    logged: list[dict[str, float]] = []
    seconds: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **others: Any) -> None:
            wait(work.device)
            seconds.append(-time.perf_counter())

        def on_step_end(self, *_: Any, **others: Any) -> None:
            wait(work.device)
            seconds[-1] += time.perf_counter()

        def on_log(self, *_: Any, logs: Any = None, **others: Any) -> None:
            logged.append(logs or {})

    class InOrder(Trainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> Any:
            return torch.utils.data.SequentialSampler(padded)

    padded = pad_rows(work, tokens)
    micro = min(R0_ROWS, work.rows)
    with tempfile.TemporaryDirectory() as folder:
        InOrder(
            model=model, train_dataset=padded, callbacks=[Clock()],
            args=TrainingArguments(
                output_dir=folder, per_device_train_batch_size=micro, max_steps=work.total, learning_rate=1e-4,
                gradient_accumulation_steps=work.rows // micro, lr_scheduler_type="constant", logging_steps=1,
                bf16=work.device == "cuda", use_cpu=work.device == "cpu", save_strategy="no", report_to=[],
                disable_tqdm=True, seed=SEED,
            ),
        ).train()  # fmt: skip
    return {"seconds": seconds, "loss": logged[0]["loss"], "grad_norm": logged[0]["grad_norm"], "notes": []}


def pad_rows(work: Work, tokens: Tokens) -> list[dict[str, list[int]]]:
    """All rows in the order of the steps, padded, as a collator would leave them."""
    padded = []
    for step in range(1, work.total + 1):
        for number in rows_of_step(step, len(tokens.rows), work.rows, SEED):
            row = tokens.rows[number]
            more = PADDED - len(row.ids)
            labels = [token if learn else -100 for token, learn in zip(row.ids, row.learn, strict=True)]
            padded.append(
                {"input_ids": row.ids + [0] * more, "labels": labels + [-100] * more,
                 "attention_mask": [1] * len(row.ids) + [0] * more}
            )  # fmt: skip
    return padded
