"""Run folders as runs leave them, invented: of a good end, a failure, a refusal; and readers of the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe, to_dict
from launcher.base.recipe import to_yaml

BEGAN = 1_800_000_000.0
EVIL = "<script>alert('x')</script> & \"quoted\" </pre>\x1b[31m\x00"
FACTS = {
    "bytes_per_token": 4.5, "chars_per_token": 4.5, "unknown_share": 0.0, "distinct_share": 0.99, "alike": 0.02,
    "vocab_size": 1000, "rows": 960, "eval_rows": 40, "file_order_share": 0.001, "parameters": 10_000,
    "trainable_parameters": 100, "learning_rate": 2e-4,
}  # fmt: skip
MOVED = {
    "trainable_tensors": 24,
    "without_gradient": 0,
    "without_gradient_names": [],
    "unmoved": 0,
    "unmoved_names": [],
}


def make_losses(count: int = 40, start: float = 2.0, end: float = 1.2, noise: float = 0.05) -> list[float]:
    """A curve that falls, with a noise that is the same each time."""
    return [
        end + (start - end) * math.exp(-3 * step / count) + noise * math.sin(7.3 * step * step)
        for step in range(count)
    ]


def make_metrics(losses: Sequence[float | None], **changes: Any) -> list[dict[str, Any]]:
    """Rows as rank 0 writes them; ``changes`` replace figures of each row, ``facts`` some of the facts."""
    facts = {**FACTS, **changes.pop("facts", {})}
    evals = dict(changes.pop("evals", {}))
    rows = []
    for step, loss in enumerate(losses, start=1):
        row = {
            "step": step, "loss": loss, "lr": 2e-4, "grad_norm": 0.5, "tokens": 400, "label_tokens": 200, "rows": 4,
            "tokens_per_s": 400.0, "step_s": 1.0, "data_wait_s": 0.01, "slowest_rank": step % 4,
            "slowest_step_s": 0.55, "median_step_s": 0.5, "time": BEGAN + 20 + step, **changes,
        }  # fmt: skip
        if step in evals:
            row["eval_loss"] = evals[step]
        if step == 1:
            row["facts"] = {key: value for key, value in facts.items() if key not in MOVED}
        if step == 3:
            row["facts"] = {key: facts.get(key, value) for key, value in MOVED.items()}
        rows.append(row)
    return rows


def make_host(name: str, **changes: Any) -> dict[str, Any]:
    """A host as hosts.json has it."""
    return {
        "name": name, "hostname": name, "python_version": "3.10.12", "driver": "6.3.8", "dtk": "25.04.2",
        "packages": {"torch": "2.4.1+das.dtk25042", "transformers": "4.51.3"}, "card_count": 2,
        "cards": [{"index": 0, "model": "K100_AI"}, {"index": 1, "model": "K100_AI"}],
        "libraries": {"rccl": {"path": "/opt/dtk/lib/librccl.so", "version": "2.22.3"}}, "kernel": "5.10.0", **changes,
    }  # fmt: skip


def make_folder(folder: Path, metrics: Sequence[Mapping[str, Any]] | None = None, **changes: Any) -> Path:
    """A whole run folder of two nodes with two ranks each; a file given as None is left out."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = to_dict(Recipe())
    recipe["model"]["path"], recipe["data"]["path"] = "/models/Qwen2.5-7B", "/data/rows.json"
    recipe["train"]["max_steps"] = 40
    recipe["train"] |= changes.pop("train", {})
    nodes = [{"host": f"node0{n}", "num_ranks": 2, "node_rank": n - 1} for n in (1, 2)]
    texts: dict[str, str | None] = {
        "config.yaml": to_yaml(recipe),
        "hosts.json": json.dumps([make_host("node01"), make_host("node02", driver="6.2.26")]),
        "plan.json": json.dumps({"world_size": 4, "nodes": nodes}),
        "preflight.json": json.dumps({"findings": [make_finding()], "allowed": []}),
        "events.jsonl": make_lines(make_events()),
        "metrics.jsonl": make_lines(metrics if metrics is not None else make_metrics(make_losses(), evals={20: 1.5, 40: 1.4})),
        "summary.json": json.dumps({"exit": 0, "origin": "launcher", "kind": "done", "host": "", "rank": None}),
    }  # fmt: skip
    for name, text in {**texts, **changes.pop("files", {})}.items():
        if text is not None:
            (folder / name).write_text(text, encoding="utf-8")
    assert not changes
    return folder


def make_finding(**changes: Any) -> dict[str, Any]:
    """A finding as preflight.json has it."""
    return {
        "level": "warning", "code": "DRIVER_DIFFERS", "hosts": ["node02"], "message": "driver 6.2.26, others 6.3.8",
        "cure": "the same driver everywhere", "allowed": False, **changes,
    }  # fmt: skip


def make_events() -> list[dict[str, Any]]:
    """A run's events from start to end."""
    ranks = [(rank, f"node0{1 + rank // 2}") for rank in range(4)]
    return [
        event("start", 0, data={"target": "configs/lora.yaml", "hosts": ["node01", "node02"]}),
        *(event("rank_started", 5, host=host, rank=rank, data={"pid": 100 + rank}) for rank, host in ranks),
        *(event("rank_ready", 12, host=host, rank=rank) for rank, host in ranks),
        event("note", 13, host="node01", rank=0, data={"message": "960 rows to train on"}),
        event(
            "checkpoint",
            40,
            host="node01",
            rank=0,
            step=20,
            data={"path": "/runs/a/checkpoints/step-00000020"},
        ),
        *(event("rank_exit", 65, host=host, rank=rank, data={"status": 0}) for rank, host in ranks),
        event("end", 66, data={"exit": 0, "kind": "done"}),
    ]


def event(kind: str, after_s: float, **fields: Any) -> dict[str, Any]:
    """An event as events.jsonl has it."""
    return {"kind": kind, "time": BEGAN + after_s, "run": "a", "attempt": 0, "version": 1, **fields}


def make_lines(rows: Sequence[Mapping[str, Any]]) -> str:
    """JSON lines."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


class Page(HTMLParser):
    """A page taken apart by the standard library's parser.

    Attributes:
        problems: elements that are closed wrongly or not at all.
        tags: names of all elements; ``attributes``: every attribute with its value.
        texts: the text in each section, by its id, without scripts and styles.
        cells: the rows of tables in each section, as texts.
        islands: the JSON of charts.
    """

    VOID = frozenset({"meta", "br", "link", "input", "!doctype"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, str] = {}
        self.cells: dict[str, list[list[str]]] = {}
        self.islands: list[Any] = []
        self._open: list[tuple[str, str]] = []
        self._section = ""
        self.feed(text)
        self.close()
        self.problems += [f"{name} is not closed" for name, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in values.items()]
        if tag in self.VOID:
            return
        self._open.append((tag, values.get("class", "")))
        if tag == "section":
            self._section = values["id"]
            self.texts[self._section], self.cells[self._section] = "", []
        if tag == "tr":
            self.cells.setdefault(self._section, []).append([])
        if tag in ("td", "th"):
            self.cells[self._section][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.problems.append(f"</{tag}> closes {self._open[-1:]}")
            return
        self._open.pop()
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] in ("script", "style"):
            if self._open[-1][1] == "points":
                self.islands.append(json.loads(data))
            return
        self.texts[self._section] = self.texts.get(self._section, "") + data
        if any(name in ("td", "th") for name, _ in self._open):
            self.cells[self._section][-1][-1] += data
