"""Recipe file, then ``key=value`` -> one resolved dict, checked as a whole. Runs on the head, before anything starts.

OmegaConf merges into the schema of ``launcher.base.config``; all mistakes are told at once, each with its line. A
recipe holds values only: nothing in it is ever imported or called.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe, describe_type, leaf_types
from launcher.base.errors import ConfigError
from launcher.base.limits import find_wrong, flatten
from launcher.base.variable import mask

#: the built-in demo: no download. Its base is random, so that embedding and head learn whole beside the adapters,
#: at a rate that a trained base would not survive.
DEMO: dict[str, Any] = {
    "model": {"path": "demo"},
    "data": {"path": "demo", "eval_fraction": 0.0},
    "method": "lora",
    "lora": {
        "r": 8, "alpha": 16, "dropout": 0.0, "targets": ["all"], "modules_to_save": ["embed_tokens", "lm_head"],
    },
    "train": {"max_steps": 20, "global_batch_size": 8, "learning_rate": 3e-3, "warmup_ratio": 0.1},
}  # fmt: skip

#: words of other trainers -> our keys, for "did you mean"
_OTHER_WORDS = {
    "lr": "train.learning_rate", "steps": "train.max_steps", "num_train_epochs": "train.epochs",
    "num_epochs": "train.epochs", "batch_size": "train.global_batch_size",
    "per_device_train_batch_size": "train.global_batch_size", "micro_batch_size": "train.max_tokens_per_card",
    "gradient_accumulation_steps": "train.max_tokens_per_card", "max_tokens": "train.max_tokens_per_card",
    "lr_scheduler": "train.scheduler", "lr_scheduler_type": "train.scheduler", "warmup_steps": "train.warmup_ratio",
    "bf16": "train.precision", "fp16": "train.precision", "dtype": "train.precision",
    "mixed_precision": "train.precision", "torch_dtype": "train.precision", "save_steps": "train.save_every",
    "eval_steps": "train.eval_every", "max_grad_norm": "train.max_grad_norm", "lora_r": "lora.r",
    "lora_rank": "lora.r", "rank": "lora.r", "lora_alpha": "lora.alpha", "lora_dropout": "lora.dropout",
    "lora_target": "lora.targets", "target_modules": "lora.targets", "model_name_or_path": "model.path",
    "model_name": "model.path", "model_path": "model.path", "dataset": "data.path", "data_path": "data.path",
    "train_file": "data.path", "validation_file": "data.eval_path", "cutoff_len": "data.max_length",
    "max_seq_length": "data.max_length", "max_seq_len": "data.max_length", "model_max_length": "data.max_length",
    "val_size": "data.eval_fraction", "finetuning_type": "method", "freeze_trainable_layers": "freeze.last_layers",
    "flash_attn": "model.attention", "attn_implementation": "model.attention",
    "report_to": "train.trackers", "log_with": "train.trackers",
    "resume_from_checkpoint": "checkpoint.resume", "save_total_limit": "checkpoint.keep", "setup": "env.setup",
}  # fmt: skip

_PATH_KEYS = ("model.path", "data.path", "data.eval_path", "deepspeed.config", "checkpoint.resume")
_TEXTS = (str, str | None)
_WORDS_FOR_PATHS = ("demo", "auto", "never")


@dataclass(frozen=True, slots=True)
class _Entry:
    """A value that a user gave: its dotted key and where it stands."""

    key: str
    value: Any
    place: str


def load_recipe(
    path: str | Path | None, overrides: Sequence[str] = (), start: Mapping[str, Any] = DEMO
) -> dict[str, Any]:
    """The resolved recipe of a file (None or ``demo``: that of ``start``) under ``key=value`` overrides.

    Raises:
        ConfigError: with every unknown key, wrong type and wrong value, each with file and line.
    """
    problems: list[str] = []
    wrong: list[str] = []
    if path is None or str(path) == "demo":
        entries = [_Entry(key, value, f"demo: {key}") for key, value in flatten(dict(start))]
    else:
        entries = _read_file(Path(path), problems)
    entries += _read_overrides(overrides, problems)
    known = leaf_types()
    unknown = [entry for entry in entries if not _check_key(entry, known, problems)]
    entries = [entry for entry in entries if entry not in unknown]
    values, unclear = _merge(entries, problems)
    unclear |= {suggest(entry.key, known) for entry in unknown} - {""}
    places = {entry.key: entry.place for entry in entries}
    for line in find_wrong(values):
        # what only follows from a mistake that is told above would send its reader astray
        if not problems or (line.split(":")[0] in places and not any(key in line for key in unclear)):
            wrong.append(f"{_place(line, places)}{line}")
    problems += wrong
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)), "docs/training.md lists every key")
    return _resolve_paths(values)


def to_yaml(recipe: Mapping[str, Any]) -> str:
    """A resolved recipe as YAML that runs again; secrets among its variables are masked."""
    from omegaconf import OmegaConf

    env = {
        name: mask(name, str(value)) if name != "setup" else value
        for name, value in recipe.get("env", {}).items()
    }
    return OmegaConf.to_yaml(OmegaConf.create({**recipe, "env": env}))


def _place(line: str, places: dict[str, str]) -> str:
    key = line.split(":", 1)[0]
    place = places.get(key, "")
    return "" if not place or place.endswith(key) or "=" in place else place + ": "


def _read_file(path: Path, problems: list[str]) -> list[_Entry]:
    import yaml  # type: ignore[import-untyped, unused-ignore]  # comes with OmegaConf
    from omegaconf import OmegaConf

    text = _read_text(path)
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        # OmegaConf's own loader: it reads 1e-4 as a number and refuses a key that stands twice
        values = OmegaConf.to_container(OmegaConf.create(text)) if tree is not None else {}
        merges = list(_find_merges(tree))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        cure = (
            "YAML takes blanks where this has a tab: expand -t 2 OLD > NEW"
            if r"'\t'" in str(error.problem)
            else ""
        )
        raise ConfigError(f"{path}:{line}: {error.problem or error.context}", cure) from None
    except Exception as error:  # a key that is null, a set, 3,000 brackets: what YAML can hold is an open set
        why = str(error).partition("\n")[0][:200] or type(error).__name__
        raise ConfigError(f"{path}: cannot be read as a recipe: {why}") from None
    if merges:
        lines = "\n".join(f"{path}:{line}: << is not supported" for line in merges)
        raise ConfigError(lines, "write the keys out")
    if tree is not None and not isinstance(tree, yaml.MappingNode):
        raise ConfigError(f"{path}: expected keys and values, as in train: {{max_steps: 10}}")
    return list(_walk(tree, values, "", str(path))) if tree is not None else []


def _find_merges(tree: Any) -> Iterator[int]:
    """Lines of YAML's merge keys: what they bring has no line of its own that a mistake could be told with."""
    nodes, seen = [tree], set()
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in seen or isinstance(node.value, str):
            continue
        seen.add(id(node))
        pairs = [part if isinstance(part, tuple) else (part,) for part in node.value]
        yield from (pair[0].start_mark.line + 1 for pair in pairs if pair[0].tag.endswith(":merge"))
        nodes += [part for pair in pairs for part in pair]


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if (
            b"\0" in data[:4]
        ):  # plain letters in UTF-16 have one in every pair, with a mark before them or without
            cure = "a file in UTF-16: iconv -f UTF-16 -t UTF-8 OLD > NEW"
            raise ConfigError(f"{path}:1: not UTF-8 text", cure)
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        near = difflib.get_close_matches(path.name, [p.name for p in path.parent.glob("*.yaml")], n=3)
        hint = (
            f"in that folder: {', '.join(near)}"
            if near
            else "dcu-launch init --recipe lora writes one to start from"
        )
        raise ConfigError(f"{path}: no such recipe", hint) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: not UTF-8 text", "a file in GBK: iconv -f GB18030 -t UTF-8 OLD > NEW"
        ) from None


def _walk(node: Any, values: Any, prefix: str, path: str) -> Iterator[_Entry]:
    """Entries of a YAML mapping; sections of the schema are gone into, all else is a value."""
    sections = {key.rsplit(".", 1)[0] for key in leaf_types() if "." in key} | {"env"}
    types = leaf_types()
    for (key_node, value_node), (name, value) in zip(node.value, values.items(), strict=True):
        key, place = f"{prefix}{name}", f"{path}:{key_node.start_mark.line + 1}"
        is_text = not isinstance(value, dict | list | type(None))
        if key in sections and isinstance(value, dict):
            yield from _walk(value_node, value, key + ".", path)
        elif key in sections and value is None:
            continue
        elif is_text and (prefix == "env." or types.get(key) in _TEXTS):
            # as it was written: a path 010 or a variable 0x10 is no number
            yield _Entry(key, value_node.value, place)
        else:
            yield _Entry(key, value, place)


def _read_overrides(words: Sequence[str], problems: list[str]) -> list[_Entry]:
    from omegaconf import OmegaConf

    types, entries = leaf_types(), []
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not re.fullmatch(r"\w+(\.[\w+-]+)*", key):
            cure = "; options stand before the recipe" if word.startswith("-") else ""
            problems.append(f"{word}: expected key=value, as in train.max_steps=10{cure}")
            continue
        value: Any = text
        is_variable = key.startswith("env.") and key != "env.setup"
        is_text = types.get(key) is str or (types.get(key) in _TEXTS and text != "null")
        if not is_variable and not is_text:
            try:
                value = OmegaConf.to_container(OmegaConf.from_dotlist([f"v={text}"]))["v"]  # type: ignore[index, call-overload]
            except Exception:  # what the YAML of a value can go wrong with is an open set
                problems.append(f"{word}: the value cannot be read")
                continue
        entries.append(_Entry(key, value, word))
    return entries


def _check_key(entry: _Entry, known: dict[str, Any], problems: list[str]) -> bool:
    sections = {key.rsplit(".", 1)[0] for key in known if "." in key}
    if entry.key in known or entry.key.startswith("env."):
        return True
    if entry.key in sections:
        problems.append(
            f"{_tell(entry)}: expected a section of keys, as in {entry.key}.{_first(entry.key, known)}"
        )
    else:
        near = suggest(entry.key, known)
        problems.append(f"{_tell(entry)}: unknown key" + (f"; did you mean {near}?" if near else ""))
    return False


def _first(section: str, known: dict[str, Any]) -> str:
    return next(key for key in known if key.startswith(section + ".")).split(".", 1)[1]


def _tell(entry: _Entry) -> str:
    return entry.place if "=" in entry.place else f"{entry.place}: {entry.key}"


def suggest(key: str, known: dict[str, Any]) -> str:
    """The key that was probably meant; empty when none is near."""
    last = key.rsplit(".", 1)[-1]
    if last in _OTHER_WORDS:
        return _OTHER_WORDS[last]
    same = [name for name in known if name.rsplit(".", 1)[-1] == last]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    if near or same:
        return (near or same)[0]
    ends = {name.rsplit(".", 1)[-1]: name for name in known}
    return next((ends[end] for end in difflib.get_close_matches(last, ends, n=1, cutoff=0.7)), "")


def _merge(entries: list[_Entry], problems: list[str]) -> tuple[dict[str, Any], set[str]]:
    """Merge values one by one into the schema, by OmegaConf, then fill in ``${...}``: each error has its own place.

    Returns:
        The values, with the schema's own where a value is wrong, and the keys of the wrong ones.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    types = leaf_types()
    merged: Any = OmegaConf.structured(Recipe)
    wrong: list[_Entry] = []
    for entry in entries:
        hint = types.get(entry.key, Any)
        value = _as_list(entry) if "list" in str(hint) or entry.key == "env.setup" else entry.value
        expected = _find_wrong_type(entry, hint, value)
        try:
            if not expected:
                merged = OmegaConf.merge(merged, _nest(entry.key, value))
        except (OmegaConfBaseException, TypeError, ValueError):
            expected = f"{describe_type(hint)}; found {_show(value)}"
        if expected:
            problems.append(f"{_tell(entry)}: expected {expected}")
            wrong.append(entry)
    for entry in entries:
        if "${" not in str(entry.value) or entry in wrong:
            continue
        try:
            node = merged
            for part in _split_key(entry.key):
                node = node[part]
        except OmegaConfBaseException as error:
            problems.append(f"{_tell(entry)}: {str(error).splitlines()[0]}; {_INTERPOLATION_CURE}")
            wrong.append(entry)
    keys = {entry.key for entry in wrong}
    if any("${" in str(entry.value) for entry in wrong):
        return _merge([entry for entry in entries if entry not in wrong], [])[0], keys
    return OmegaConf.to_container(merged, resolve=True), keys  # type: ignore[return-value]


def _find_wrong_type(entry: _Entry, hint: Any, value: Any) -> str:
    """What was expected where OmegaConf would not complain, or not well; empty when it may decide."""
    if entry.key == "env.setup" and not _is_steps(value):
        return "a list of set-up steps, as in [/opt/dtk/env.sh, module:NAME]"
    if entry.key == "env":
        return f"NAME: value pairs; found {_show(value)}"
    if isinstance(value, bool) and "bool" not in str(hint) and hint is not Any:
        return f"{describe_type(hint)}; found {_show(value)}"  # OmegaConf would take true for 1.0
    return ""


_INTERPOLATION_CURE = (
    "${train.seed} is another key, ${oc.env:NAME} a variable of this machine; "
    "in env, NAME+: value prepends on the node"
)


def _is_steps(value: Any) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(step, str) and step for step in value)
    )


def _as_list(entry: _Entry) -> Any:
    """A list written as text, ``q_proj,v_proj``; a question may hold commas."""
    value = entry.value
    if entry.key == "train.samples":
        return [value] if isinstance(value, str) else value
    return [item.strip() for item in value.split(",") if item.strip()] if isinstance(value, str) else value


def _split_key(key: str) -> list[str]:
    return key.split(".", 1) if key.startswith("env.") else key.split(".")


def _nest(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(_split_key(key)):
        value = {part: value}
    return dict(value)


def _show(value: Any) -> str:
    words = {dict: "a section", list: "a list", type(None): "nothing (null)"}
    return words.get(type(value)) or repr(value)


def _resolve_paths(values: dict[str, Any]) -> dict[str, Any]:
    """Paths that are there on the head become absolute: a node's working folder may be another."""
    for key in _PATH_KEYS:
        section, name = key.split(".")
        value = values[section][name]
        if not value or value in _WORDS_FOR_PATHS:
            continue
        if os.path.exists(os.path.expanduser(value)):
            values[section][name] = os.path.abspath(os.path.expanduser(value))
    return values
