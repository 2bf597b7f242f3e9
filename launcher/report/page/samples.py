"""What the model answered to fixed prompts, from samples.jsonl: a block a prompt, a row a step. Pure."""

from __future__ import annotations

from launcher.report.page.markup import Markup, table, tag
from launcher.report.page.words import Words
from launcher.report.run_record import RunRecord

#: prompts and answers shown at most
MAX_PROMPTS, MAX_ANSWERS = 12, 8


def show_samples(record: RunRecord, words: Words) -> Markup | None:
    """The answers by prompt in the order of steps, the first and the newest ones; None without samples."""
    answers: dict[str, list[tuple[int, str]]] = {}
    for row in record.samples:
        prompt, step = row.get("prompt"), row.get("step")
        if isinstance(prompt, str) and isinstance(step, int):
            answers.setdefault(prompt, []).append((step, str(row.get("answer", ""))))
    if not answers:
        return None
    blocks = [
        tag(
            "div",
            tag("p", tag("b", f"{words('prompt')}: "), prompt),
            _table_of(found, words),
            class_="sample",
        )
        for prompt, found in list(answers.items())[:MAX_PROMPTS]
    ]
    return tag("div", tag("p", words("samples_note"), class_="muted"), blocks)


def _table_of(answers: list[tuple[int, str]], words: Words) -> Markup:
    ordered = sorted(dict(answers).items())
    if len(ordered) > MAX_ANSWERS:
        ordered = [ordered[0], *ordered[-MAX_ANSWERS + 1 :]]
    rows = [
        [f"{words('before_training') if step == 0 else step}", tag("td", answer, class_="answer")]
        for step, answer in ordered
    ]
    return table([words("step"), words("answer")], rows, "prose")
