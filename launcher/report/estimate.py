"""Shape of a model + recipe -> the memory that a card needs. Pure functions; run on the head, without torch.

What is counted is what ``launcher.train`` keeps: frozen weights in the format that computes, what learns in float32 with
gradient and AdamW's two moments, a copy of it in 16 bits while a step runs, activations that a backward pass comes by, one
chunk of logits. The peak is taken where all activations are kept, with gradients of earlier micro-batches beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from launcher.base.config import Recipe
from launcher.base.errors import UsageError
from launcher.report.model_shape import ModelShape

GIB = 1 << 30
#: what driver, libraries and the collectives' buffers take before the first tensor
CONTEXT = GIB
#: and the share that an allocator loses between tensors
FRAGMENTS = 0.05
#: numbers of one chunk of logits; ``launcher.train.loss`` has the same
CHUNK_NUMBERS = 1 << 27
#: DeepSpeed's defaults: numbers of a bucket that is reduced at once, and of weights that ZeRO-3 keeps gathered
BUCKET = 500_000_000
LIVE = 1_000_000_000
#: tokens of a sequence where attention goes by mask
MASKED_LENGTH = 512
#: work space of matrix products
WORKSPACE = 64 << 20
STEP_TOKENS = 256
MOST_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a method trains.

    Attributes:
        whole: numbers of the model's own weights that learn.
        added: numbers that adapters and their copies of whole modules add.
        lowest: the lowest block through which gradients pass; the number of blocks for none.
        trained: blocks with weights of their own that learn.
        head: whether the head learns.
        embedding: whether the embedding does.
    """

    whole: int
    added: int
    lowest: int
    trained: int
    head: bool
    embedding: bool

    @property
    def total(self) -> int:
        """Numbers that learn."""
        return self.whole + self.added


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes that one card needs, and of how many numbers.

    Attributes:
        logits: the larger of a chunk of logits with its gradient, and what the backward pass of one block needs.
        reserve: context, buffers of collectives, gaps between tensors; no allocator counts it.
    """

    parameters: int
    trainable: int
    tokens: int
    weights: int
    casts: int
    gradients: int
    optimizer: int
    activations: int
    logits: int
    reserve: int

    @property
    def allocated(self) -> int:
        """What an allocator would call its peak."""
        return (
            self.weights
            + self.casts
            + self.gradients
            + self.optimizer
            + self.activations
            + self.logits
            + WORKSPACE
        )

    @property
    def total(self) -> int:
        """What a card must have."""
        return self.allocated + self.reserve


def estimate_memory(shape: ModelShape, recipe: Recipe, precision: str, cards: int, tokens: int) -> Estimate:
    """Memory of each card for micro-batches of this many tokens.

    Args:
        precision: ``bf16``, ``fp16`` or ``fp32``.

    Raises:
        UsageError: the recipe trains what this model does not have.
    """
    learnt = find_learnt(shape, recipe)
    zero = recipe.deepspeed.zero_stage if recipe.engine == "deepspeed" else 0
    size = 4 if precision == "fp32" else 2
    everything = shape.total + learnt.added
    weights, casts, gradients, optimizer = _count_state(everything, learnt.total, size, zero, cards)
    activations, logits = _count_work(shape, recipe, learnt, size, zero, tokens)
    allocated = weights + casts + gradients + optimizer + activations + logits
    return Estimate(
        shape.total, learnt.total, tokens, weights, casts, gradients, optimizer, activations, logits,
        CONTEXT + int(FRAGMENTS * allocated),
    )  # fmt: skip


def find_most_tokens(shape: ModelShape, recipe: Recipe, precision: str, cards: int, room: int) -> int:
    """The largest micro-batch, in steps of 256 tokens, that fits ``room`` bytes; 0 where none does."""
    low, high = 0, MOST_TOKENS // STEP_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if estimate_memory(shape, recipe, precision, cards, middle * STEP_TOKENS).total <= room:
            low = middle
        else:
            high = middle - 1
    return low * STEP_TOKENS


def find_learnt(shape: ModelShape, recipe: Recipe) -> Learnt:
    """What learns; raises UsageError where a recipe names modules that the model lacks, or nothing would."""
    sizes = shape.parameters
    if recipe.method == "full":
        return Learnt(shape.total, 0, 0, shape.blocks, True, True)
    if recipe.method == "lora":
        saved = _find(shape, "lora.modules_to_save", recipe.lora.modules_to_save)
        added = count_adapters(shape, recipe) + sum(sizes[name] for name in saved)
        return Learnt(0, added, 0, 0, _has_head(shape, saved), "model.embed_tokens" in saved)
    if not 0 <= recipe.freeze.last_layers <= shape.blocks:
        raise UsageError(
            f"freeze.last_layers: expected 1 to {shape.blocks}, the number of this model's decoder blocks; "
            f"found {recipe.freeze.last_layers}"
        )
    first = shape.blocks - recipe.freeze.last_layers
    names = {name for name in sizes if _block_of(name) is not None and (_block_of(name) or 0) >= first}
    names |= _find(shape, "freeze.modules", recipe.freeze.modules)
    if not names:
        raise UsageError("freeze.last_layers: 0 without freeze.modules: nothing would learn")
    blocks = {block for name in names if (block := _block_of(name)) is not None}
    lowest = 0 if "model.embed_tokens" in names else min(blocks, default=shape.blocks)
    whole = sum(sizes[name] for name in names)
    return Learnt(whole, 0, lowest, len(blocks), _has_head(shape, names), "model.embed_tokens" in names)


def count_adapters(shape: ModelShape, recipe: Recipe) -> int:
    """Numbers of all LoRA matrices."""
    chosen = _targets(shape, recipe)
    return shape.blocks * recipe.lora.r * sum(left + right for left, right, _ in chosen.values())


def _targets(shape: ModelShape, recipe: Recipe) -> dict[str, tuple[int, int, str]]:
    """The linear layers of a block that get adapters, as ``launcher.train.methods`` finds them."""
    linears, asked = shape.linears(), recipe.lora.targets
    if asked == ["all"]:
        return linears
    if not asked:
        return {name: sizes for name, sizes in linears.items() if name.startswith("self_attn.")}
    unknown = [word for word in asked if not any(_matches(word, name) for name in linears)]
    if unknown:
        known = ", ".join(name.split(".")[-1] for name in linears)
        raise UsageError("\n".join(f"lora.targets: {word!r} is no layer of this model's blocks; there are {known}"
                                   for word in unknown))  # fmt: skip
    return {name: sizes for name, sizes in linears.items() if any(_matches(word, name) for word in asked)}


def _find(shape: ModelShape, key: str, patterns: Iterable[str]) -> set[str]:
    """Names of weights in the modules that patterns mean; a tied head is the embedding."""
    found: set[str] = set()
    for pattern in patterns:
        mine = {name for name in shape.parameters if any(_matches(pattern, part) for part in _paths(name))}
        if shape.is_tied and _matches(pattern, "lm_head"):
            mine.add("model.embed_tokens")
        if not mine:
            raise UsageError(f"{key}: {pattern!r} is no module of this model")
        found |= mine
    return found


def _paths(name: str) -> list[str]:
    words = name.split(".")
    return [".".join(words[:count]) for count in range(1, len(words) + 1)]


def _matches(pattern: str, name: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def _has_head(shape: ModelShape, names: set[str]) -> bool:
    return ("model.embed_tokens" if shape.is_tied else "lm_head") in names


def _block_of(name: str) -> int | None:
    words = name.split(".")
    return int(words[2]) if words[:2] == ["model", "layers"] else None


def _count_state(everything: int, learnt: int, size: int, zero: int, cards: int) -> tuple[int, int, int, int]:
    """Bytes of weights, of copies and buffers beside them, of gradients, and of the optimizer's state."""
    if zero == 0:
        # float32 where it learns, and its copy in the format that computes
        casts = learnt * size if size < 4 else 0
        return (everything - learnt) * size + learnt * 4, casts, learnt * 4, learnt * 8
    share = -(-learnt // cards)
    optimizer = share * (12 if size < 4 else 8)  # DeepSpeed keeps the float32 weights with the moments
    bucket = min(BUCKET, learnt) * size
    gradients = learnt * size if zero == 1 else share * 4
    if zero < 3:
        return everything * size, bucket, gradients, optimizer
    return -(-everything // cards) * size, bucket + min(LIVE, everything) * size, gradients, optimizer


def _count_work(
    shape: ModelShape, recipe: Recipe, learnt: Learnt, size: int, zero: int, tokens: int
) -> tuple[int, int]:
    """Bytes of activations that are kept, and of the largest tensors that come and go beside them."""
    # under autocast an embedding in float32 makes the sums between the blocks float32, too
    stream = 4 if learnt.embedding and zero == 0 else size
    passed = shape.blocks - learnt.lowest
    block = tokens * count_block(shape, recipe, learnt, size, stream)
    backward = tokens * (4 * shape.inner * size + 3 * shape.width * stream)
    ends = tokens * shape.width * (2 * stream + 2 * size)
    loss = count_loss(shape, recipe, learnt, size, tokens)
    masks = 0
    if recipe.model.attention in ("sdpa", "eager"):
        length = min(recipe.data.pack_length or MASKED_LENGTH, tokens)
        masks = tokens * length * (4 + size)
    if recipe.train.gradient_checkpointing:
        kept = passed * tokens * shape.width * stream
        return kept + ends + masks, max(loss, block + backward)
    return passed * block + ends + masks, max(loss, backward)


def count_block(shape: ModelShape, recipe: Recipe, learnt: Learnt, size: int, stream: int) -> int:
    """Bytes a token that one block keeps for its backward pass, not compiled."""
    width, inner, query, key = shape.width, shape.inner, shape.query, shape.key
    # norms keep what they read in float32, and where they learn the normed numbers, too: torch's fused kernel of 2.9
    # and liger's do without, but a node's torch may be older
    is_lean = recipe.train.kernels == "liger"
    normed = stream if is_lean else 4
    count = 2 * width * (normed if is_lean or recipe.method == "lora" else normed + 4)
    flash = recipe.model.attention not in ("sdpa", "eager")
    count += (2 * query + 2 * (key if flash else query)) * size + 4 * shape.heads
    if recipe.model.attention == "eager":
        length = recipe.data.pack_length or MASKED_LENGTH
        count += shape.heads * length * (2 * size + 4)
    if shape.head_norms:
        count += (query + key) * (size if is_lean else 4)
    gates = 3 if recipe.train.kernels == "model" or shape.is_fused else 2
    count += gates * inner * size
    if recipe.method == "lora":
        return count + _count_adapter_inputs(shape, recipe, size)
    # inputs of layers that learn; sums in float32 are turned to 16 bits once for each layer
    first, second = (1, 1) if stream == size else (3, 2)
    return count + ((first + second) * width + inner) * size


def _count_adapter_inputs(shape: ModelShape, recipe: Recipe, size: int) -> int:
    """Bytes a token of what adapters read: each drops other numbers, and without dropout some share theirs."""
    chosen, count = _targets(shape, recipe), 0
    if recipe.lora.dropout:
        count += sum(left * (size + 1) for left, _, _ in chosen.values())
    else:
        kinds = {
            (name.split(".")[0], left) for name, (left, _, _) in chosen.items() if not name.endswith("o_proj")
        }
        count += sum(left for _, left in kinds) * size  # what goes into o_proj is kept anyway
    return count + len(chosen) * recipe.lora.r * size


def count_loss(shape: ModelShape, recipe: Recipe, learnt: Learnt, size: int, tokens: int) -> int:
    """Bytes of logits and of what is made from them, if all tokens are learnt."""
    if recipe.train.logits == "all":
        return tokens * shape.vocabulary * (size + 12)
    rows = min(tokens, max(256, CHUNK_NUMBERS // shape.vocabulary))
    numbers = rows * shape.vocabulary
    inputs = 2 * tokens * shape.width * size
    if learnt.head or size == 4 or recipe.train.precision == "fp16":
        return inputs + numbers * (2 * size + 12)
    # logits, their copy in float32 (torch's log_softmax makes one of bf16, not of fp16) and its result; the last chunk is
    # still there while the next one is made
    return inputs + numbers * (size + (12 if tokens > rows else 8))


def as_mapping(found: Estimate) -> Mapping[str, int]:
    """All figures by name, in bytes where they are memory."""
    names = (
        "parameters", "trainable", "tokens", "weights", "casts", "gradients", "optimizer", "activations", "logits",
        "reserve", "allocated", "total",
    )  # fmt: skip
    return {name: getattr(found, name) for name in names}
