"""Model folder -> tokenizer and causal model; the built-in demo's model from a seed. Runs in every rank."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.base.errors import ConfigError
from launcher.train.data import demo_file, resolve_data_path
from launcher.train.features import dtype_word

#: files of a model folder that belong to its tokenizer
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json",
)  # fmt: skip

#: of models with code of their own (model.trust_remote_code), and what such a tokenizer reads
CODE_FILES = ("*.py", "*.tiktoken", "*_text.model")

#: beside a result: base, template and end marks, so that ``generate`` asks as training did
CARD = "dcu_launch.json"


def check_paths(recipe: Recipe, with_rows: bool = True) -> None:
    """Refuse paths that are not there, before anything heavy is imported; raises ConfigError with all of them."""
    problems = []
    try:
        check_model_path(recipe.model.path)
    except ConfigError as error:
        problems.append(f"model.path: {error.message}")
    rows = (("data.path", recipe.data.path), ("data.eval_path", recipe.data.eval_path)) if with_rows else ()
    for key, path in rows:
        if path and not resolve_data_path(path).exists():
            problems.append(f"{key}: {path} is not there")
    if problems:
        raise ConfigError(
            "\n".join(problems),
            "every node must see model and rows under these paths; from another folder, give them whole",
        )


def check_model_path(model: str) -> None:
    """Refuse what cannot be a model: raises ConfigError; nothing is loaded."""
    if model == "demo":
        return
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{model} has no config.json: not a folder that transformers saved")
    elif folder.exists():
        raise ConfigError(f"{model} is a file: expected a model folder")
    elif not _is_hub_name(model):
        raise ConfigError(f"{model} is not there")
    elif _is_offline() and not _is_cached(model):
        raise ConfigError(f"{model} is neither a folder here nor in the cache, and the hub is offline")


def _is_hub_name(path: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", path) is not None


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def _is_cached(name: str) -> bool:
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub")
    return os.path.isdir(os.path.join(cache, "models--" + name.replace("/", "--"), "snapshots"))


def load_tokenizer(path: str, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a model folder; raises ConfigError when there is none that can be read."""
    from transformers import AutoTokenizer

    folder = str(demo_file("")) if path == "demo" else path
    try:
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:  # the tokenizers library raises bare Exception
        # tokenizers 0.20 began to write merges as pairs, which older ones cannot read
        newer = "untagged enum" in str(error)
        hint = "its tokenizer.json was written by a newer tokenizers than this node has" if newer else ""
        raise ConfigError(
            f"model.path: no tokenizer can be read from {path}: {_first_line(error)}", hint
        ) from error


def check_tokenizer(path: str, tokenizer: Any) -> str:
    """A warning where transformers reads a tokenizer in another way than its own file says; else nothing.

    transformers 5 takes the rules of some model types in place of those in tokenizer.json.
    """
    from tokenizers import Tokenizer  # comes with transformers

    file = demo_file("tokenizer.json") if path == "demo" else Path(path) / "tokenizer.json"
    if not file.is_file():
        return ""
    text = "Total 1234, it's 中文 text;  \n\tx=3.14"
    if (
        Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
        == (tokenizer(text, add_special_tokens=False)["input_ids"])
    ):
        return ""
    return f"{path}: {type(tokenizer).__name__} makes other tokens of a text than its tokenizer.json does"


def load_model_config(recipe: Recipe, tokenizer: Any) -> Any:
    """The model's own config.json as transformers reads it, without any weights."""
    if recipe.model.path == "demo":
        return _demo_config(tokenizer)
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
    except (OSError, ValueError, KeyError) as error:
        hint = "model.trust_remote_code=true runs the code in that folder: read it first"
        raise ConfigError(
            f"model.path: {recipe.model.path}: {_first_line(error)}", hint if "trust" in str(error) else ""
        ) from error


def load_model(recipe: Recipe, config: Any, dtype: Any, attention: str) -> Any:
    """The causal model, on the CPU, in this dtype; raises ConfigError when it cannot be read."""
    import torch
    from transformers import AutoModelForCausalLM

    if recipe.model.path == "demo":
        # the same numbers on every rank: nothing is sent around
        torch.manual_seed(recipe.train.seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
        return model.to(dtype)
    try:
        return AutoModelForCausalLM.from_pretrained(
            recipe.model.path, config=config, attn_implementation=attention,
            trust_remote_code=recipe.model.trust_remote_code, **{dtype_word(): dtype},
        )  # fmt: skip
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"model.path: {recipe.model.path}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _demo_config(tokenizer: Any) -> Any:
    """A Qwen2 of about 5 M parameters for the demo's tokenizer."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=2048,
        tie_word_embeddings=False, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip


def decoder_layers(causal: Any) -> tuple[str, Any]:
    """The list of decoder blocks and its name inside the model; raises ConfigError when none is found."""
    import torch

    config = causal.config.get_text_config() if hasattr(causal.config, "get_text_config") else causal.config
    count = getattr(config, "num_hidden_layers", None) or getattr(config, "num_layers", None)
    for name, module in causal.named_modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return name, module
    raise ConfigError(f"{type(causal).__name__}: no list of {count} decoder blocks is found in it")


def copy_tokenizer(path: str, tokenizer: Any, target: Path) -> None:
    """Put the tokenizer into a folder: the very files it came from, since a newer transformers writes others.

    With it the Python code that the model's folder brings (``auto_map``): without it neither tokenizer nor model loads again.
    """
    source = demo_file("") if path == "demo" else Path(path)
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    if path != "demo":
        names += [file.name for kind in CODE_FILES for file in source.glob(kind)]
    if names:
        for name in names:
            (target / name).write_bytes((source / name).read_bytes())
    else:
        tokenizer.save_pretrained(target)


def copy_model_config(path: str, target: Path) -> None:
    """Put the model's own config.json over the one just saved, for the same reason."""
    for name in ("config.json", "generation_config.json"):
        source = Path(path) / name
        if path != "demo" and source.is_file():
            (target / name).write_bytes(source.read_bytes())
    if path == "demo":
        file = target / "config.json"
        values = json.loads(file.read_text(encoding="utf-8"))
        theta = (values.get("rope_parameters") or {}).get("rope_theta", 10000.0)
        file.write_text(json.dumps({**values, "rope_theta": theta}, indent=2), encoding="utf-8")
