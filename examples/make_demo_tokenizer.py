"""Make the built-in demo's tokenizer and rows from the instruction rows beside this file.

    python examples/make_demo_tokenizer.py [--rows examples/dcu_instructions.jsonl] [--out launcher/train/demo]

A byte-level BPE, so that any text can be encoded, saved in the older of the two layouts in use: transformers 4.44 (tokenizers
0.19) and 5.x both read it. Needs the `tokenizers` package, which comes with transformers. The same rows give the same files.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
VOCAB_SIZE = 6144
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
EVERY = 5  # one row in five is enough to show a falling loss, and keeps the package small
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Read one JSON object a line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def train_tokenizer(rows: list[dict[str, str]]) -> Tokenizer:
    """Train the byte-level BPE on all fields of the rows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = [row[field] for row in rows for field in ("instruction", "input", "output") if row[field]]
    # The words a prompt is framed with are in no row; without them they would be spelt letter by letter.
    text += [
        "### Instruction:\n### Input:\n### Answer:\n### 指令:\n### 输入:\n### 回答:\n",
        "system\nuser\nassistant\n",
    ] * 2
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def tokenizer_json(tokenizer: Tokenizer) -> str:
    """Give tokenizer.json with merges as "a b": newer releases write pairs, which tokenizers 0.19 cannot read."""
    content = json.loads(tokenizer.to_str())
    merges = content["model"]["merges"]
    content["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in merges]
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def tokenizer_config() -> str:
    """Give tokenizer_config.json: the class both layouts know, the marks, and the chat template inline."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "eos_token": END,
        "additional_special_tokens": [START],
        "clean_up_tokenization_spaces": False,
        # transformers 4.44 would add token_type_ids, which causal models refuse
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 2048,
        "chat_template": CHAT_TEMPLATE,
    }
    return json.dumps(config, indent=2)


def write_text(path: Path, text: str) -> None:
    """Write aside, then move: a reader never sees half a file."""
    aside = path.with_name(path.name + ".partial")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the built-in demo's tokenizer and rows.")
    parser.add_argument("--rows", type=Path, default=HERE / "dcu_instructions.jsonl")
    parser.add_argument("--out", type=Path, default=HERE.parent / "launcher" / "train" / "demo")
    args = parser.parse_args()

    rows = read_rows(args.rows)
    tokenizer = train_tokenizer(rows)
    args.out.mkdir(parents=True, exist_ok=True)
    write_text(args.out / "tokenizer.json", tokenizer_json(tokenizer) + "\n")
    write_text(args.out / "tokenizer_config.json", tokenizer_config() + "\n")
    write_text(
        args.out / "rows.jsonl",
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows[::EVERY]),
    )
    print(f"{args.out}: {tokenizer.get_vocab_size()} tokens, {len(rows[::EVERY])} of {len(rows)} rows")


if __name__ == "__main__":
    main()
