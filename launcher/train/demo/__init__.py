"""Train stage, data only: what the built-in demo learns from, so that it needs no download.

Holds the rows (rows.jsonl) and the tokenizer (tokenizer.json, tokenizer_config.json) as package data; the model is made from
a seed on each node. Runs where the ranks run. Made again by examples/make_demo_tokenizer.py.
"""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROWS = FOLDER / "rows.jsonl"
