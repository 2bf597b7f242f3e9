"""Rows on disk -> tokens of this run -> tensors of a micro-batch. Runs in every rank, with the same result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError
from launcher.train.pack import MicroBatch, PackLimits, round_up, split_rows
from launcher.train.row_facts import describe_rows
from launcher.train.rows import Row, read_rows
from launcher.train.template import Encoded, Template, choose_template, encode_rows

#: a packed sequence is about this long where attention goes by mask: measured against 1024 on a card, and far better
#: than one long dense mask
SEQUENCE_LENGTH = 512
#: tokens of a micro-batch where the recipe leaves it open
CARD_TOKENS, CPU_TOKENS = 8192, 256
#: rows that are encoded at once
_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Tokens:
    """Rows as tokens, in the order of the file, all of them with something to learn.

    Attributes:
        lengths: tokens of each row.
        labels: tokens of each row that are learnt.
    """

    rows: tuple[Encoded, ...]
    lengths: tuple[int, ...]
    labels: tuple[int, ...]

    def count_labels(self, rows: Sequence[int]) -> int:
        """Tokens that are learnt in these rows."""
        return sum(self.labels[row] for row in rows)

    def count_tokens(self, rows: Sequence[int]) -> int:
        """Tokens of these rows, without padding."""
        return sum(self.lengths[row] for row in rows)


@dataclass(frozen=True, slots=True)
class RunData:
    """What a run learns from and is measured on.

    Attributes:
        messages: what was left out or cut.
        facts: figures about the rows to learn from, see ``row_facts``.
    """

    template: Template
    train: Tokens
    eval: Tokens
    messages: tuple[str, ...]
    facts: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch as tensors.

    Attributes:
        input_ids: [sequences, length].
        position_ids: likewise; each row of a packed sequence starts at 0.
        mask: [sequences, 1, length, length], 0 where a token may look and a huge negative number elsewhere; None where
            plain causal attention is right, that is, with one row a sequence.
        label_places: places in the flattened sequences whose *next* token is learnt.
        targets: these next tokens.
        starts: for a varlen kernel, where rows of the one sequence begin, and its end; None elsewhere.
        longest: no row of any batch is longer.
    """

    input_ids: Any
    position_ids: Any
    mask: Any
    label_places: Any
    targets: Any
    starts: Any = None
    longest: int = 0


def demo_file(name: str) -> Path:
    """A file of the built-in demo, as a path."""
    return Path(str(resources.files("launcher.train") / "demo" / name))


def resolve_data_path(path: str) -> Path:
    """The rows that a recipe names."""
    return demo_file("rows.jsonl") if path == "demo" else Path(path)


def load_data(recipe: Recipe, tokenizer: Any, progress: Callable[[int, int], None] | None = None) -> RunData:
    """Read, check, encode and split the rows of a recipe; raises ConfigError when nothing usable is left.

    Args:
        progress: is called with the rows that are encoded, and all of them, again and again.
    """
    data, messages = recipe.data, list[str]()
    found = read_rows(resolve_data_path(data.path), data.on_bad_row)
    _tell_bad(data.path, found.bad, messages)
    template = choose_template(data.template, tokenizer, found.rows)
    if data.eval_path:
        held = read_rows(resolve_data_path(data.eval_path), data.on_bad_row)
        _tell_bad(data.eval_path, held.bad, messages)
        train_rows, eval_rows = found.rows[: data.max_rows], held.rows[: data.max_rows]
    else:
        train_numbers, eval_numbers = split_rows(
            len(found.rows[: data.max_rows]), data.eval_fraction, recipe.train.seed
        )
        train_rows = tuple(found.rows[i] for i in train_numbers)
        eval_rows = tuple(found.rows[i] for i in eval_numbers)
    num_train, total = len(train_rows), len(train_rows) + len(eval_rows)

    def see(done: int) -> None:
        if progress is not None:
            progress(done, total)

    train = _encode(recipe, template, train_rows, data.path, messages, see)
    held_path = data.eval_path or data.path
    held_back = _encode(recipe, template, eval_rows, held_path, messages, lambda done: see(num_train + done))
    if not train.rows:
        raise ConfigError(
            f"{data.path}: no answer is left in any of {len(train_rows)} rows cut to data.max_length "
            f"({data.max_length} tokens)",
            "raise data.max_length",
        )
    facts = describe_rows(train_rows, tokenizer)
    cut = f"; {facts['chars_per_token']:.1f} characters a token" if facts else ""
    messages.insert(0, describe_tokens(train, held_back, template.name) + cut)
    return RunData(template, train, held_back, tuple(messages), facts)


def _tell_bad(path: str, bad: tuple[str, ...], messages: list[str]) -> None:
    if bad:
        messages.append(f"{path}: {len(bad)} bad rows left out, the first: {bad[0]}")


def _encode(
    recipe: Recipe,
    template: Template,
    rows: Sequence[Row],
    path: str,
    messages: list[str],
    see: Callable[[int], None],
) -> Tokens:
    limit, encoded = recipe.data.max_length, list[Encoded]()
    for start in range(0, len(rows), _CHUNK):
        encoded += encode_rows(template, rows[start : start + _CHUNK], recipe.data.mask_prompt)
        see(len(encoded))
    num_cut = sum(len(row.ids) > limit for row in encoded)
    cut = [Encoded(row.ids[:limit], row.learn[:limit]) for row in encoded]
    kept = [row for row in cut if any(row.learn[1:])]
    if num_cut:
        messages.append(f"{path}: {num_cut} of {len(rows)} rows are longer than {limit} tokens and were cut")
    if len(kept) < len(rows):
        messages.append(f"{path}: {len(rows) - len(kept)} rows left out: cut before their answer begins")
    return make_tokens(kept)


def make_tokens(rows: Sequence[Encoded]) -> Tokens:
    """Rows with their lengths and label counts; the first token of a row has nothing that predicts it."""
    return Tokens(tuple(rows), tuple(len(row.ids) for row in rows), tuple(sum(row.learn[1:]) for row in rows))


def describe_tokens(train: Tokens, held: Tokens, template: str) -> str:
    """One line of figures about the rows."""
    total, labels = sum(train.lengths), sum(train.labels)
    return (
        f"{len(train.rows)} rows to train on, {len(held.rows)} held back; {total} tokens, {labels} of them learnt; "
        f"{total / max(1, len(train.rows)):.0f} tokens a row, longest {max(train.lengths, default=0)}; "
        f"template {template}"
    )


def make_limits(recipe: Recipe, on_card: bool, *sets: Tokens) -> PackLimits:
    """How rows are packed, from the recipe, the device and the longest row that is there."""
    longest = max((max(tokens.lengths, default=1) for tokens in sets), default=1)
    room = recipe.train.max_tokens_per_card
    if room is None:
        # ranks on CPUs share the memory of their machine, and gain nothing from long micro-batches
        room = CARD_TOKENS if on_card else max(longest, CPU_TOKENS)
    wanted = min(recipe.data.pack_length or SEQUENCE_LENGTH, room)
    return PackLimits(room, max(longest, wanted), recipe.data.packing)


def make_batch(tokens: Tokens, micro: MicroBatch, device: Any, limits: PackLimits | None = None) -> Batch:
    """The tensors of a micro-batch, padded as ``limits`` say; from an empty one nothing is learnt."""
    import torch

    length = max((sum(tokens.lengths[row] for row in sequence) for sequence in micro), default=1)
    longest, unit = (limits.longest, limits.unit) if limits else (0, 1)
    length = round_up(length, unit)
    ids: list[list[int]] = []
    positions: list[list[int]] = []
    owners: list[list[int]] = []
    places: list[int] = []
    targets: list[int] = []
    for index, sequence in enumerate(micro or [[]]):
        line: list[int] = []
        line_positions: list[int] = []
        line_owners: list[int] = []
        for number, row in enumerate(sequence, start=1):
            encoded, start = tokens.rows[row], index * length + len(line)
            learnt = [i for i in range(1, len(encoded.ids)) if encoded.learn[i]]
            places += [start + i - 1 for i in learnt]
            targets += [encoded.ids[i] for i in learnt]
            line += encoded.ids
            line_positions += range(len(encoded.ids))
            line_owners += [number] * len(encoded.ids)
        padding = length - len(line)
        # padding stands after its sequence, where causal attention never looks; its id does not matter
        ids.append(line + [0] * padding)
        positions.append(line_positions + list(range(len(line), length)))
        owners.append(line_owners + [0] * padding)
    is_packed = not longest and any(len(sequence) > 1 for sequence in micro)
    starts = (
        row_starts([tokens.lengths[row] for row in micro[0]] if micro else [], length, longest)
        if longest
        else None
    )
    on_card = getattr(device, "type", device) == "cuda"

    def place(values: Any, dtype: Any = torch.long) -> Any:
        # from pinned memory, behind what the card still has to do: nothing waits
        made = torch.tensor(values, dtype=dtype)
        return made.pin_memory().to(device, non_blocking=True) if on_card else made.to(device)

    return Batch(
        place(ids),
        place(positions),
        make_mask(place(owners)) if is_packed else None,
        place(places),
        place(targets),
        place(starts, torch.int32) if starts else None,
        longest,
    )


def row_starts(lengths: Sequence[int], length: int, longest: int) -> list[int]:
    """Where rows begin, and the end of the sequence; padding counts as rows that are no longer than ``longest``.

    Filled up with empty rows to a multiple of 64, so that compiled code sees few shapes.
    """
    starts = [0]
    for row in lengths:
        starts.append(starts[-1] + row)
    while starts[-1] < length:  # what no row covers a kernel leaves as it was: not even a number
        starts.append(min(length, starts[-1] + longest))
    return starts + [length] * (round_up(len(starts), 64) - len(starts))


def make_mask(owners: Any) -> Any:
    """The mask that keeps attention inside each row, [sequences, 1, length, length], from each token's row number.

    Positions that start anew are not enough: transformers leaks between rows with them alone, in 4.44 always.
    """
    import torch

    length = owners.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=owners.device).tril()
    allowed = (owners[:, :, None] == owners[:, None, :]) & causal
    # a number and no infinity: a token that may look nowhere would make the whole gradient NaN
    mask = torch.zeros(allowed.shape, device=owners.device)
    return mask.masked_fill_(~allowed, torch.finfo(torch.float16).min)[:, None]
