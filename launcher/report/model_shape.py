"""A model's config.json -> its weights by name and size. Pure functions, for ``estimate``; run on the head, without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from launcher.base.errors import UsageError

#: model types whose blocks are known here: norm, attention, norm, gated perceptron
KNOWN_TYPES = ("llama", "mistral", "phi3", "qwen2", "qwen3")
_NEEDED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only model.

    Attributes:
        width: of the hidden states; ``inner`` of the perceptron.
        query: numbers a token has as query (heads x head size); ``key`` the same as key, and as value.
        has_bias: kinds of linear layers with a bias: ``qkv``, ``o``, ``mlp``.
        head_norms: whether queries and keys are normed a head.
        stored: format of the weights in the folder, as config.json says.
    """

    model_type: str
    vocabulary: int
    width: int
    inner: int
    blocks: int
    heads: int
    query: int
    key: int
    is_tied: bool
    has_bias: tuple[str, ...] = ()
    head_norms: bool = False
    stored: str = ""

    @property
    def is_fused(self) -> bool:
        """Whether q, k and v are one layer, gate and up another."""
        return self.model_type == "phi3"

    def linears(self) -> dict[str, tuple[int, int, str]]:
        """The linear layers of one block: name -> numbers in, numbers out, kind of bias."""
        width, inner, query, key = self.width, self.inner, self.query, self.key
        if self.is_fused:
            first = {"self_attn.qkv_proj": (width, query + 2 * key, "qkv")}
            gates = {"mlp.gate_up_proj": (width, 2 * inner, "mlp")}
        else:
            first = {
                "self_attn.q_proj": (width, query, "qkv"),
                "self_attn.k_proj": (width, key, "qkv"),
                "self_attn.v_proj": (width, key, "qkv"),
            }
            gates = {"mlp.gate_proj": (width, inner, "mlp"), "mlp.up_proj": (width, inner, "mlp")}
        return {
            **first,
            "self_attn.o_proj": (query, width, "o"),
            **gates,
            "mlp.down_proj": (inner, width, "mlp"),
        }

    @cached_property
    def parameters(self) -> dict[str, int]:
        """How many numbers each module with weights has, by its full name; a tied head has none of its own."""
        found = {"model.embed_tokens": self.vocabulary * self.width}
        for block in range(self.blocks):
            found.update((f"model.layers.{block}.{name}", size) for name, size in self._block())
        found["model.norm"] = self.width
        if not self.is_tied:
            found["lm_head"] = self.vocabulary * self.width
        return found

    def _block(self) -> Iterator[tuple[str, int]]:
        for name, (left, right, kind) in self.linears().items():
            yield name, left * right + (right if kind in self.has_bias else 0)
        if self.head_norms:
            yield "self_attn.q_norm", self.query // self.heads
            yield "self_attn.k_norm", self.query // self.heads
        yield "input_layernorm", self.width
        yield "post_attention_layernorm", self.width

    @property
    def total(self) -> int:
        """All numbers."""
        return sum(self.parameters.values())


def read_shape(path: str) -> ModelShape:
    """The shape of a model folder, or of its config.json.

    Raises:
        UsageError: there is no such file, it cannot be read, or its architecture is not known here.
    """
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
        if not file.is_file():
            raise UsageError(
                f"{path} has no config.json", "name a folder that transformers saved, or the file itself"
            )
    try:
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        hint = "a model on the hub is not looked up: its config.json, downloaded, is enough"
        raise UsageError(f"there is no {path}", hint) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{file}: cannot be read as JSON: {error}") from None
    if not isinstance(values, dict):
        raise UsageError(f"{file}: expected a JSON object")
    return make_shape(values, str(file))


def make_shape(values: Mapping[str, Any], place: str = "config.json") -> ModelShape:
    """The shape that the keys of a config.json give; raises UsageError with all that is missing or wrong."""
    model_type = values.get("model_type")
    if model_type not in KNOWN_TYPES:
        raise UsageError(
            f"{place}: model_type {model_type!r} is not known to estimate",
            f"known are {', '.join(KNOWN_TYPES)}; for others a run says memory_gib in its metrics",
        )
    numbers = {name: values.get(name) for name in _NEEDED}
    for name in ("num_key_value_heads", "head_dim"):
        if values.get(name) is not None:
            numbers[name] = values[name]
    wrong = [f"{name}: expected a whole number above 0; found {v!r}" for name, v in numbers.items()
             if isinstance(v, bool) or not isinstance(v, int) or v <= 0]  # fmt: skip
    if wrong:
        raise UsageError("\n".join(f"{place}: {line}" for line in wrong))
    heads, width = values["num_attention_heads"], values["hidden_size"]
    size = values.get("head_dim") or (128 if model_type == "qwen3" else width // heads)
    return ModelShape(
        model_type=str(model_type), vocabulary=values["vocab_size"], width=width, inner=values["intermediate_size"],
        blocks=values["num_hidden_layers"], heads=heads, query=heads * size,
        key=(values.get("num_key_value_heads") or heads) * size,
        # phi3, llama, mistral and the Qwens keep them apart unless the file says otherwise
        is_tied=bool(values.get("tie_word_embeddings", False)), has_bias=_biases(values, str(model_type)),
        head_norms=model_type == "qwen3", stored=str(values.get("dtype") or values.get("torch_dtype") or ""),
    )  # fmt: skip


def _biases(values: Mapping[str, Any], model_type: str) -> tuple[str, ...]:
    kinds: list[str] = []
    if model_type == "qwen2":
        kinds.append("qkv")
    elif model_type in ("llama", "qwen3") and values.get("attention_bias"):
        kinds += ["qkv", "o"]
    if model_type == "llama" and values.get("mlp_bias"):
        kinds.append("mlp")
    return tuple(kinds)
