"""A model of 0.2 M parameters with its tokenizer, rows for it, and real ranks that train it.

python -m tests.train.tiny FOLDER      makes the model folder, as transformers 4.44 and 5.x read it alike
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe, to_dict

ROOT = Path(__file__).resolve().parent.parent.parent
END = "<|im_end|>"
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = "the quick brown fox jumps over a lazy dog while seven grey wolves run along the river at night"


def make_tokenizer(folder: Path, chat: bool = True) -> None:
    """Write a byte-level tokenizer whose pad token is its end mark, the trap of many a base model."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    # Qwen2's own: transformers 5 puts it in for this model type whatever the file says
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|endoftext|>", "<|im_start|>", END], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([WORDS] * 4, trainer)
    values = json.loads(tokenizer.to_str())
    # pairs, as newer ones write them, are read by no older tokenizers
    values["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in values["model"]["merges"]]
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "model_max_length": 2048, **({"chat_template": CHAT} if chat else {}),
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def make_model(folder: Path) -> None:
    """Write a Qwen2 of three blocks."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False, eos_token_id=0,
        pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "rope_theta": 10000.0}), encoding="utf-8")


def make_rows(count: int = 24) -> list[dict[str, str]]:
    """Alpaca rows with answers of 1 to 60 words."""
    rows = []
    for number in range(count):
        length = (1, 3, 9, 27, 60)[number % 5]
        words = WORDS.split()
        answer = " ".join(words[(number + i) % len(words)] for i in range(length))
        rows.append({"instruction": f"Say {length} words from {number}", "input": "", "output": answer})
    return rows


def recipe(model: Path, rows: Path, **sections: dict[str, Any] | str) -> dict[str, Any]:
    """A resolved recipe for the tiny model, with changed keys by section."""
    values = to_dict(Recipe())
    base: dict[str, Any] = {
        "model": {"path": str(model)},
        "data": {"path": str(rows), "eval_fraction": 0.0},
        "lora": {"dropout": 0.0},
        "train": {"max_steps": 4, "global_batch_size": 8, "learning_rate": 1e-3, "precision": "fp32"},
    }
    for changes in (base, sections):
        for key, change in changes.items():
            if isinstance(change, dict):
                values[key] |= change
            else:
                values[key] = change
    return values


@dataclass(frozen=True)
class Ran:
    """How ranks ended: exit codes, outputs (stdout and stderr) and the run folder."""

    codes: list[int]
    outputs: list[str]
    run_dir: Path

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl."""
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [row["loss"] for row in self.metrics]


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def rank_variables(rank: int, size: int, port: int) -> dict[str, str]:
    """torchrun's variables for one rank of a single node."""
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip


class Rank:
    """A rank forked from the nursery."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def output(self) -> str:
        """What it has written so far."""
        return (self.folder / "output").read_text() if (self.folder / "output").exists() else ""

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal, unless it has ended."""
        if not (self.folder / "code").exists():
            wait_until((self.folder / "pid").exists)
            os.kill(int((self.folder / "pid").read_text()), number)

    def wait(self, timeout_s: float = 120) -> int:
        """Its exit code."""
        wait_until((self.folder / "code").exists, timeout_s)
        return int((self.folder / "code").read_text())


def wait_until(is_so: Callable[[], bool], timeout_s: float = 120) -> None:
    """Wait for something; raises AssertionError when it does not come."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.02)


class Ranks:
    """Starts ranks, from a nursery that is started with the first of them.

    Args:
        python: whose packages are used.
        modules: imported before ranks are forked, as well.
        variables: of all ranks.
    """

    def __init__(
        self,
        python: str = sys.executable,
        modules: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        self.python, self._modules, self._variables = python, modules, variables or {}
        self._nursery: subprocess.Popen[str] | None = None

    def start(
        self,
        config: dict[str, Any],
        run_dir: Path,
        size: int = 1,
        code: str = "",
        others: dict[int, Any] | None = None,
    ) -> list[Rank]:
        """Start ranks as torchrun would.

        Args:
            code: runs in each rank before training begins.
            others: ranks that get another recipe.
        """
        ranks, port = [], free_port()
        for rank in range(size):
            folder = run_dir.parent / f"{run_dir.name}-rank{rank}-{port}"
            folder.mkdir(parents=True)
            (folder / "recipe.json").write_text(
                json.dumps((others or {}).get(rank, config)), encoding="utf-8"
            )
            job = {
                "argv": ["--config", str(folder / "recipe.json"), "--run-dir", str(run_dir)], "code": code,
                "folder": str(folder), "variables": rank_variables(rank, size, port),
            }  # fmt: skip
            self._give(job)
            ranks.append(Rank(folder))
        return ranks

    def call(self, module: str, argv: list[str], folder: Path) -> tuple[int, str]:
        """Run ``main(argv)`` of a program that is no rank; its exit code and output.

        Args:
            folder: for its output; of a name that is new.
        """
        folder.mkdir(parents=True)
        self._give({"module": module, "argv": argv, "code": "", "folder": str(folder), "variables": {}})
        called = Rank(folder)
        try:
            return called.wait(), called.output
        finally:
            called.kill()

    def _give(self, job: dict[str, Any]) -> None:
        if self._nursery is None:
            self._nursery = subprocess.Popen(
                [self.python, "-m", "tests.train.nursery", *self._modules], cwd=ROOT, stdin=subprocess.PIPE,
                text=True, env={**os.environ, **self._variables},
            )  # fmt: skip
        assert self._nursery.stdin is not None
        self._nursery.stdin.write(json.dumps(job) + "\n")
        self._nursery.stdin.flush()

    def wait(self, ranks: list[Rank], run_dir: Path) -> Ran:
        """Wait until all have ended; those that do not are killed, and the test fails."""
        try:
            codes = [rank.wait() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        return Ran(codes, [rank.output for rank in ranks], run_dir)

    def end(self, config: dict[str, Any], run_dir: Path, size: int = 1, **options: Any) -> Ran:
        """Train until the ranks end in whatever way."""
        return self.wait(self.start(config, run_dir, size, **options), run_dir)

    def train(self, config: dict[str, Any], run_dir: Path, size: int = 1, **options: Any) -> Ran:
        """Train to the end; an exit code other than 0 fails the test."""
        ran = self.end(config, run_dir, size, **options)
        assert ran.codes == [0] * size, "\n".join(ran.outputs)
        return ran

    def close(self) -> None:
        """End the nursery."""
        if self._nursery is not None and self._nursery.stdin is not None:
            self._nursery.stdin.close()
            self._nursery.wait(timeout=30)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make_tokenizer(target)
    make_model(target)
