"""LoRA fine-tuning of a causal language model on one card, with the Hugging Face Trainer and peft.

    python train_lora.py --model_path models/smollm2-135m --data_path dcu_instructions.jsonl --max_steps 20

Rows are Alpaca rows (instruction, input, output), a JSON list or one object a line. The loss covers the answer only.
"""

import argparse
import json
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

IGNORED = -100  # the label that cross entropy leaves out


def read_rows(path):
    text = Path(path).read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        return json.loads(text)
    return [json.loads(line) for line in text.split("\n") if line.strip()]


class InstructionDataset(Dataset):
    """Alpaca rows as token ids, the prompt masked in the labels."""

    def __init__(self, rows, tokenizer, max_length):
        self.examples = []
        for number, row in enumerate(rows):
            question = row["instruction"] + ("\n" + row["input"] if row.get("input") else "")
            prompt = tokenizer(f"### Instruction:\n{question}\n\n### Response:\n")["input_ids"]
            answer = tokenizer(row["output"], add_special_tokens=False)["input_ids"] + [
                tokenizer.eos_token_id
            ]
            ids = (prompt + answer)[:max_length]
            labels = ([IGNORED] * len(prompt) + answer)[:max_length]
            if any(label != IGNORED for label in labels):
                self.examples.append({"row": number, "input_ids": ids, "labels": labels})

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, index):
        return self.examples[index]


class Collator:
    """Pad a batch to its longest row."""

    def __init__(self, pad_id, print_rows=False):
        self.pad_id = pad_id
        self.print_rows = print_rows

    def __call__(self, examples):
        if self.print_rows:
            print(json.dumps({"rows": [example["row"] for example in examples]}), flush=True)
        length = max(len(example["input_ids"]) for example in examples)

        def padded(name, fill):
            return torch.tensor([ex[name] + [fill] * (length - len(ex[name])) for ex in examples])

        return {
            "input_ids": padded("input_ids", self.pad_id),
            "labels": padded("labels", IGNORED),
            "attention_mask": torch.tensor(
                [[1] * len(ex["input_ids"]) + [0] * (length - len(ex["input_ids"])) for ex in examples]
            ),
        }


def parse_args():
    parser = argparse.ArgumentParser(description="LoRA fine-tuning with the Trainer and peft.")
    parser.add_argument("--model_path", required=True)
    parser.add_argument("--data_path", required=True)
    parser.add_argument("--output_dir", default="outputs/lora")
    parser.add_argument("--max_steps", type=int, default=100)
    parser.add_argument("--batch_size", type=int, default=2)
    parser.add_argument("--max_length", type=int, default=512)
    parser.add_argument("--learning_rate", type=float, default=2e-4)
    parser.add_argument("--lora_r", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--print_rows", action="store_true", help="print the numbers of the rows in each batch"
    )
    return parser.parse_args()


def main():
    args = parse_args()
    set_seed(args.seed)
    bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()

    training_args = TrainingArguments(
        output_dir=args.output_dir,
        max_steps=args.max_steps,
        per_device_train_batch_size=args.batch_size,
        learning_rate=args.learning_rate,
        warmup_steps=max(1, args.max_steps // 20),
        logging_steps=1,
        save_steps=args.max_steps,
        bf16=bf16,
        seed=args.seed,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        report_to="none",
    )
    tokenizer = AutoTokenizer.from_pretrained(args.model_path)
    dataset = InstructionDataset(read_rows(args.data_path), tokenizer, args.max_length)
    model = AutoModelForCausalLM.from_pretrained(args.model_path)
    model = model.to(torch.bfloat16 if bf16 else torch.float32)
    model = get_peft_model(
        model,
        LoraConfig(
            task_type="CAUSAL_LM",
            r=args.lora_r,
            lora_alpha=2 * args.lora_r,
            lora_dropout=0.05,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        ),
    )

    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=dataset,
        data_collator=Collator(pad_id, args.print_rows),
    )
    print(
        f"process {training_args.process_index} of {training_args.world_size}: {len(dataset)} rows",
        flush=True,
    )
    trainer.train()
    trainer.save_model(args.output_dir)
    if trainer.is_world_process_zero():
        tokenizer.save_pretrained(args.output_dir)
        print(f"adapter saved in {args.output_dir}", flush=True)


if __name__ == "__main__":
    main()
