"""Questions -> answers, by a base, a base with its adapter, or a whole model. Runs on one card, or on the CPU.

``dcu-launch generate`` starts it with its options as one JSON word. Questions are put as they were in training: the
folder of the result says how.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from launcher.base.errors import LauncherError, UsageError
from launcher.train.load import import_training_stack, load_source, pick_card
from launcher.train.precision import choose_precision
from launcher.train.prompts import Prompt, make_prompt, read_prompts, say_prompts
from launcher.train.rows import Row
from launcher.train.source import Source, find_source
from launcher.train.template import Template, choose_template, encode_question, end_ids
from launcher.train.world import write_error


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; temperature 0: the likeliest."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 42


@dataclass(frozen=True, slots=True)
class Asked:
    """A model that can be asked.

    Attributes:
        has_adapter: whether it can also answer as the base alone.
        template_name: as recorded or wished; ``auto`` is decided by each question's language.
        ends: tokens that end an answer, as recorded; empty: those of the template.
    """

    model: Any
    tokenizer: Any
    has_adapter: bool
    template_name: str
    ends: tuple[int, ...]
    sampling: Sampling

    def answer(self, prompt: Prompt, *, base_only: bool = False, live: bool = False) -> str:
        """The answer to a question; ``live`` also writes it to stdout as it comes."""
        template = self._template(prompt)
        question = encode_question(template, prompt.turns)
        ends = list(self.ends) or end_ids(template)
        without = self.model.disable_adapter() if base_only and self.has_adapter else contextlib.nullcontext()
        with without:
            tokens = run_model(self.model, self.tokenizer if live else None, question, ends, self.sampling)
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True)).strip()

    def _template(self, prompt: Prompt) -> Template:
        return choose_template(self.template_name, self.tokenizer, [Row(prompt.turns, "--prompt")])


def load_asked(source: Source, options: dict[str, Any]) -> Asked:
    """Load what is to be asked; raises ConfigError or UsageError."""
    import_training_stack()
    device = pick_card(bool(options.get("cpu")))
    precision = choose_precision(str(options.get("precision", "auto")), device).value
    model, tokenizer = load_source(source, device, precision, bool(options.get("trust_remote_code")))
    names = ("max_new_tokens", "temperature", "top_p", "seed")
    sampling = Sampling(**{name: options[name] for name in names if name in options})
    wish = str(options.get("template", "auto"))
    recorded = str(source.card.get("template", "auto"))
    name = recorded if wish == "auto" else wish
    ends = tuple(int(number) for number in source.card.get("end_ids", ())) if name == recorded else ()
    return Asked(model, tokenizer, source.adapter is not None, name, ends, sampling)


def run_model(
    model: Any, streamed_by: Any, question: list[int], ends: list[int], sampling: Sampling
) -> list[int]:
    """The tokens that follow a question.

    Args:
        streamed_by: a tokenizer to write them to stdout with as they come, or None.
    """
    import torch
    from transformers import GenerationConfig, TextStreamer

    device = next(model.parameters()).device
    ids = torch.tensor([question], device=device)
    draws = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens, do_sample=sampling.temperature > 0, eos_token_id=ends,
        pad_token_id=ends[0], use_cache=True, **(draws if sampling.temperature > 0 else {}),
    )  # fmt: skip
    streamer = TextStreamer(streamed_by, skip_prompt=True, skip_special_tokens=True) if streamed_by else None
    if sampling.temperature > 0:
        torch.manual_seed(sampling.seed)  # each answer alone: the order of questions does not matter
    with torch.no_grad():
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config, streamer=streamer
        )
    return [int(token) for token in output[0, len(question) :]]


def gather_prompts(options: dict[str, Any]) -> list[Prompt] | None:
    """The questions of words or file; None: they come from the terminal. Raises UsageError."""
    words, file, system = options.get("prompts") or (), options.get("file"), str(options.get("system") or "")
    if words and file:
        raise UsageError("questions by --prompt and from a file: one of them")
    if words:
        return say_prompts(words, system)
    if file or not sys.stdin.isatty():
        return read_prompts(file or "-", system)
    return None


def show_answers(asked: Asked, prompts: list[Prompt], options: dict[str, Any]) -> None:
    """Write the answers to stdout: as text, or as one JSON object a line."""
    compare, base_only = bool(options.get("compare")), bool(options.get("base_only"))
    for number, prompt in enumerate(prompts):
        answer = asked.answer(prompt, base_only=base_only)
        base = asked.answer(prompt, base_only=True) if compare else None
        if options.get("as_json"):
            row = {"prompt": prompt.text, "answer": answer}
            line = json.dumps(row if base is None else {**row, "base_answer": base}, ensure_ascii=False)
        elif base is not None:
            line = f"Q: {prompt.text}\n-- base\n{base}\n-- base + adapter\n{answer}"
        else:
            line = answer if len(prompts) == 1 else f"Q: {prompt.text}\n{answer}"
        gap = "\n" if number and not options.get("as_json") else ""
        sys.stdout.write(f"{gap}{line}\n")
        sys.stdout.flush()


def talk(asked: Asked, options: dict[str, Any]) -> None:
    """Answer what is typed, each question on its own, until end of file."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  lines can be edited and called back

    sys.stdout.write("One question a line, each on its own; Ctrl-D ends.\n")
    for line in _typed_lines():
        prompt = make_prompt(line, str(options.get("system") or ""))
        if options.get("compare"):
            sys.stdout.write("-- base\n")
            asked.answer(prompt, base_only=True, live=True)
            sys.stdout.write("-- base + adapter\n")
        asked.answer(prompt, base_only=bool(options.get("base_only")), live=True)


def _typed_lines() -> Iterator[str]:
    while True:
        try:
            line = input("> ")
        except EOFError:
            sys.stdout.write("\n")
            return
        if line.strip():
            yield line


def check_options(source: Source, options: dict[str, Any]) -> None:
    """Refuse options that cannot go together; raises UsageError."""
    if source.adapter is None and (options.get("compare") or options.get("base_only")):
        raise UsageError("--compare and --base-only need an adapter: this is a whole model")
    if options.get("compare") and options.get("base_only"):
        raise UsageError("--compare and --base-only: one of them")


def main(argv: list[str]) -> int:
    """Answer; the exit code: 0 done, 2 a mistake of the user's, 130 interrupted."""
    options = json.loads(argv[0])
    try:
        source = find_source(
            options["what"],
            options.get("base") or "",
            bool(options.get("allow_other_base")),
            bool(options.get("best")),
        )
        check_options(source, options)
        prompts = gather_prompts(options)
        asked = load_asked(source, options)
        if prompts is None:
            talk(asked, options)
        else:
            show_answers(asked, prompts, options)
    except LauncherError as error:
        write_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        sys.stdout.write("\n")
        return 130
    except BrokenPipeError:
        return 141
    return 0
