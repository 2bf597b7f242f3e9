"""A model folder -> a mark that another model does not have. Standard library only; reads about a megabyte.

An adapter is worth nothing on another base than its own: training records the mark beside the adapter, ``generate`` and
``merge`` compare it. Weights are sampled a little in the middle of each tensor, so that the mark stays the same however
they are split into files and differs when any block was trained on.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

#: numbers of config.json that decide what fits onto a model
SHAPE_KEYS = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size",
)  # fmt: skip
#: of config.json, but no matter to what a model computes
_IGNORED = ("transformers_version", "_name_or_path", "torch_dtype", "dtype", "use_cache", "architectures")
_SAMPLE_BYTES = 1024
_SAMPLES_A_FILE = 256


def find_model_folder(path: str) -> Path | None:
    """The folder of a model: itself, or the newest snapshot in the cache of a hub name; None when there is none."""
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    home = os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"))
    repo = cache / ("models--" + path.replace("/", "--"))
    try:
        name = (repo / "refs" / "main").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return repo / "snapshots" / name if name and (repo / "snapshots" / name).is_dir() else None


def mark_base(path: str, seed: int) -> dict[str, Any]:
    """What to know a base by: ``config`` and ``weights`` as sha256, its shapes, and the bytes of its weights.

    Args:
        path: a folder, a name on the hub that is in the cache, or ``demo``.
        seed: that the demo's model is made from.

    Returns:
        Nothing where there are no files to look at.
    """
    if path == "demo":
        return {"demo": seed}
    folder = find_model_folder(path)
    if folder is None:
        return {}
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights, size = _hash_weights(folder)
    except (OSError, ValueError):
        return {}
    known = {key: value for key, value in config.items() if key not in _IGNORED}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    return {
        "config": hashlib.sha256(text.encode()).hexdigest(), "weights": weights, "bytes": size,
        "shape": {key: config[key] for key in SHAPE_KEYS if key in config},
    }  # fmt: skip


def compare_marks(trained: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """How a base that is here differs from the one that was trained on; empty when it does not, or nothing is known."""
    if not trained or not found:
        return []
    if "demo" in trained or "demo" in found:
        same = trained.get("demo") == found.get("demo")
        return [] if same else [f"{_name(trained)} was trained on, this is {_name(found)}"]
    shapes = [
        f"{key} {trained['shape'].get(key)} -> {found['shape'].get(key)}"
        for key in SHAPE_KEYS if trained["shape"].get(key) != found["shape"].get(key)
    ]  # fmt: skip
    if shapes:
        return shapes
    differences = ["config.json has other values"] if trained["config"] != found["config"] else []
    return differences + (["its weights are others"] if trained["weights"] != found["weights"] else [])


def _name(mark: dict[str, Any]) -> str:
    return f"the demo's model of seed {mark['demo']}" if "demo" in mark else "a model folder"


def _hash_weights(folder: Path) -> tuple[str, int]:
    """(sha256 over a sample of all weights, their bytes)."""
    files = sorted(folder.glob("*.safetensors"))
    if files:
        pieces = [piece for file in files for piece in _sample_tensors(file)]
    else:
        files = sorted([*folder.glob("pytorch_model*.bin"), *folder.glob("consolidated*.pth")])
        pieces = [piece for file in files for piece in _sample_file(file)]
    if not files:
        raise OSError("no weights")
    digest = hashlib.sha256()
    for piece in sorted(pieces):
        digest.update(piece)
    return digest.hexdigest(), sum(file.stat().st_size for file in files)


def _sample_tensors(file: Path) -> list[bytes]:
    """Name, type, shape and a few bytes of each tensor of a safetensors file."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        if length > 1 << 28:
            raise ValueError(f"{file}: no safetensors header")
        header = json.loads(stream.read(length))
        pieces = []
        for name, facts in header.items():
            if name == "__metadata__":
                continue
            start, end = facts["data_offsets"]
            middle = max(start, (start + end - _SAMPLE_BYTES) // 2)
            stream.seek(8 + length + middle)
            sample = stream.read(min(_SAMPLE_BYTES, end - middle))
            pieces.append(f"{name} {facts['dtype']} {facts['shape']} ".encode() + sample)
    return pieces


def _sample_file(file: Path) -> list[bytes]:
    size = file.stat().st_size
    with file.open("rb") as stream:
        pieces = []
        for index in range(_SAMPLES_A_FILE):
            stream.seek(size * index // _SAMPLES_A_FILE)
            pieces.append(f"{file.name} {size} {index:06d} ".encode() + stream.read(_SAMPLE_BYTES))
    return pieces
