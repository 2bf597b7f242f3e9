"""An adapter and its base -> one model folder. Runs on the CPU, outside of training.

``dcu-launch merge`` starts it with its options as one JSON word. The weights are added in float32, the result is compared
with base and adapter by what both say of the same tokens, and the folder is there whole or not at all.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.errors import ConfigError, LauncherError, ResultError, UsageError
from launcher.train.base_mark import mark_base
from launcher.train.checkpoint import ADAPTER, hash_file, write_folder
from launcher.train.load import import_training_stack, load_source
from launcher.train.model import CARD, copy_model_config, copy_tokenizer
from launcher.train.precision import torch_dtype
from launcher.train.source import Source, find_source, is_checkpoint, is_run_folder
from launcher.train.world import write_error

#: what float32 sums may differ by when they are made in another order, as a share of the largest logit
TOLERANCE = 1e-4
#: both models are asked for the logits of these; their content does not matter, all layers take part
PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "深度计算单元用于训练大语言模型。",
    "def mean(values): return sum(values) / len(values)",
    "1 + 1 = 2, 3.14159, 2026-01-01",
)
_FORMATS = {"torch.bfloat16": "bfloat16", "torch.float16": "float16", "torch.float32": "float32"}


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged model before it is written.

    Attributes:
        difference: the largest difference of a logit from base and adapter, as a share of the largest logit.
    """

    model: Any
    tokenizer: Any
    difference: float


def merge(source: Source, trust_remote_code: bool = False) -> Merged:
    """Add the adapter to its base in float32 and compare; whole tensors of a checkpoint just take their places.

    Raises:
        ConfigError: base or adapter cannot be read, or do not fit.
        ResultError: the merged model says something else than base and adapter.
    """
    import torch

    model, tokenizer = load_source(source, torch.device("cpu"), "fp32", trust_remote_code)
    if source.adapter is None:
        return Merged(model, tokenizer, 0.0)
    questions = [tokenizer(text, return_tensors="pt")["input_ids"] for text in PROBES]
    before = [_logits(model, ids) for ids in questions]
    try:
        model = model.merge_and_unload(safe_merge=True)
    except (
        ValueError,
        NotImplementedError,
    ) as error:  # numbers that are none, or layers that cannot be merged
        raise ResultError(f"{source.adapter}: cannot be merged: {error}") from None
    largest = max(float(logits.abs().max()) for logits in before)
    away = [
        float((_logits(model, ids) - logits).abs().max())
        for ids, logits in zip(questions, before, strict=True)
    ]
    difference = max(away) / max(largest, 1e-30)
    if not difference <= TOLERANCE:
        raise ResultError(
            f"{source.adapter}: the merged model's logits differ by {difference:.1e} of the largest one from base and adapter, "
            f"more than {TOLERANCE:.0e}; nothing was written",
            "vLLM and transformers can load base and adapter as they are",
        )
    return Merged(model, tokenizer, difference)


def _logits(model: Any, ids: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def write_merged(merged: Merged, source: Source, part: Path, target: Path, dtype: str) -> None:
    """Write the model folder: safetensors, the base's own config and tokenizer files, and where it comes from.

    Args:
        part: the folder of what was learnt: an adapter or a checkpoint.
        dtype: ``bf16``, ``fp16``, ``fp32``; ``base``: the one that the base is stored in.
    """
    stored = torch_dtype(dtype) if dtype != "base" else _dtype_of_base(source)
    mark = mark_base(source.base, source.seed)
    origin = {
        "base": source.base,
        "base_mark": mark,
        "adapter": str(part),
        "adapter_sha256": _hash_part(part),
        "difference": merged.difference,
    }
    kept = {key: source.card[key] for key in ("template", "end_ids", "seed") if key in source.card}

    def write(folder: Path) -> None:
        weights = {name: tensor.to(stored) for name, tensor in merged.model.state_dict().items()}
        merged.model.save_pretrained(folder, state_dict=weights, safe_serialization=True)
        copy_model_config(source.base, folder)
        _name_dtype(folder / "config.json", _FORMATS[str(stored)])
        copy_tokenizer(source.base, merged.tokenizer, folder)
        (folder / CARD).write_text(
            json.dumps({**kept, "method": "merged", "merged": origin}, indent=1, ensure_ascii=False),
            encoding="utf-8",
        )

    write_folder(target, write, {"merged": origin})


def _dtype_of_base(source: Source) -> Any:
    import torch

    values = json.loads(_config_of(source).read_text(encoding="utf-8")) if _config_of(source) else {}
    name = str(values.get("dtype") or values.get("torch_dtype") or "float32")
    return getattr(torch, name) if name in _FORMATS.values() else torch.float32


def _config_of(source: Source) -> Any:
    from launcher.train.base_mark import find_model_folder

    folder = find_model_folder(source.base)
    return folder / "config.json" if folder is not None and (folder / "config.json").is_file() else None


def _name_dtype(config: Path, name: str) -> None:
    """config.json says in which format its weights are: transformers 4 and 5 call it differently."""
    values = json.loads(config.read_text(encoding="utf-8"))
    keys = [key for key in ("dtype", "torch_dtype") if key in values] or ["torch_dtype"]
    if any(values.get(key) != name for key in keys):
        config.write_text(
            json.dumps({**values, **dict.fromkeys(keys, name)}, indent=2, ensure_ascii=False),
            encoding="utf-8",
        )


def _hash_part(part: Path) -> dict[str, str]:
    names = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "trainable.safetensors")
    return {name: hash_file(part / name) for name in names if (part / name).is_file()}


def choose_target(what: str, out: str, part: Path) -> Path:
    """Where the merged model goes; raises UsageError.

    By default ``merged`` in the run folder, or beside the adapter; of a checkpoint, which may be deleted with all that is
    in it, ``merged-step-00000100`` in the run folder.
    """
    folder, step = Path(what).expanduser(), part.parent if part.name == ADAPTER else part
    if is_checkpoint(step):
        default = step.absolute().parent.parent / f"merged-{step.absolute().name}"
    else:
        default = (folder if is_run_folder(folder) else part.parent) / "merged"
    target = Path(out).expanduser() if out else default
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: is there already, and is not overwritten", "--out DIR names another")
    return target


def main(argv: list[str]) -> int:
    """Merge; the exit code: 0 done, 1 the result does not hold, 2 a mistake of the user's, 130 interrupted."""
    options = json.loads(argv[0])
    try:
        source = find_source(
            options["what"],
            options.get("base") or "",
            bool(options.get("allow_other_base")),
            bool(options.get("best")),
        )
        if source.part is None:
            raise ConfigError(f"{options['what']}: a whole model, there is no adapter to merge")
        target = choose_target(options["what"], options.get("out") or "", source.part)
        import_training_stack()
        merged = merge(source, bool(options.get("trust_remote_code")))
        write_merged(merged, source, source.part, target, str(options.get("dtype") or "base"))
    except LauncherError as error:
        write_error(error)
        return error.exit_code
    except OSError as error:
        write_error(ResultError(f"{error.filename or options['what']}: {error.strerror or error}"))
        return 1
    except KeyboardInterrupt:
        return 130
    told = (
        f"merged in float32; logits of {len(PROBES)} texts differ from base and adapter by at most "
        f"{merged.difference:.1e} of the largest one"
    )
    sys.stdout.write(
        f"{target}\n{told if source.adapter else 'the base with what was learnt in its place'}\n"
    )
    return 0
