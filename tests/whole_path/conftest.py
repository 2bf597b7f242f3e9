"""A tiny real model on disk and rows for it, made once; readers of what runs leave behind."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "launcher" / "train" / "demo"

_MAKE_MODEL = """
import sys, torch
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
demo, folder = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(demo)
torch.manual_seed(5)
config = Qwen2Config(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
                     tie_word_embeddings=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
Qwen2ForCausalLM(config).save_pretrained(folder)
tokenizer.save_pretrained(folder)
"""


@pytest.fixture(scope="session")
def tiny_model() -> Path:
    """A folder with a Qwen2 of some 0.5 M random parameters and the demo's tokenizer; kept between runs."""
    folder = ROOT / ".work" / "test-cache" / "tiny-model"
    if not (folder / "config.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-c", _MAKE_MODEL, str(DEMO), str(folder)], check=True)
    return folder


@pytest.fixture
def rows_file(lab_path: Path) -> Path:
    """24 Alpaca rows with answers of different lengths."""
    rows = [
        {"instruction": f"数到 {n}", "input": "", "output": "，".join(map(str, range(1, n + 2)))}
        for n in range(24)
    ]
    path = lab_path / "rows.json"
    path.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    return path


def write_hosts(folder: Path, names: list[str], slots: int = 2) -> str:
    """A hostfile in the folder; its name."""
    (folder / "hosts").write_text("".join(f"{name} slots={slots}\n" for name in names))
    return "hosts"


def read_jsonl(path: Path) -> list[dict]:
    """All objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def rank_logs(folder: Path) -> list[str]:
    """Each rank's whole output, in the order of ranks."""
    return [log.read_text() for log in sorted(folder.glob("logs/*/rank-*.log"), key=lambda path: path.name)]


def json_objects(text: str) -> list[dict]:
    """The lines of an output that are JSON objects."""
    found = []
    for line in text.split("\n"):
        with contextlib.suppress(ValueError):  # a Trainer prints its rows with single quotes
            value = json.loads(line)
            found += [value] if isinstance(value, dict) else []
    return found
