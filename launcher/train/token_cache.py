"""Rows as tokens, made once a node and kept on disk. Runs in every rank, before the model is read.

The first rank of a node to take the lock makes them; the others wait for its file, not on a collective. A file's name is
the hash of all that decides what it holds; it is tensors and JSON, checked whole, and never a pickle.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import time
from array import array
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe
from launcher.train.data import RunData, Tokens, load_data, make_tokens, resolve_data_path
from launcher.train.rows import list_files
from launcher.train.template import Encoded, Template

#: rows of fewer bytes become tokens in about a second: not worth a file
LEAST_BYTES = 2 << 20
#: what is kept, the last used first
MOST_FILES, MOST_BYTES = 16, 8 << 30
SUFFIX = ".tokens"
_DIGEST = 32
_POLL_S, _TELL_S = 0.1, 10.0
#: modules of this package that decide what rows become
_CODE = ("data.py", "pack.py", "row_facts.py", "rows.py", "template.py", "token_cache.py")
#: files of a tokenizer that is written in Python
_TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja", "*.py", "*.tiktoken")


class Teller:
    """Tells how far it is, every few seconds."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell, self._last = tell, time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self._last >= _TELL_S:
            self._last = time.monotonic()
            self._tell(f"tokenizing: {done:,} of {total:,} rows")


def load_tokens(recipe: Recipe, tokenizer: Any, tell: Callable[[str], None]) -> RunData:
    """What ``load_data`` gives, or gave before for the same rows, tokenizer and settings.

    Args:
        tell: is told how far it is, if it takes long, and why nothing is kept.

    Raises:
        ConfigError: as ``load_data`` does, on each rank by itself.
    """
    if recipe.data.cache != "never" and count_bytes(recipe) >= LEAST_BYTES:
        try:
            kept = _load_or_make(recipe, tokenizer, tell)
        except OSError as error:  # no room, no rights, no locks on this disk
            tell(f"each rank makes rows into tokens by itself, and keeps none: {error}")
            kept = None
        if kept is not None:
            return kept
    return load_data(recipe, tokenizer, Teller(tell))


def _load_or_make(recipe: Recipe, tokenizer: Any, tell: Callable[[str], None]) -> RunData | None:
    """Kept tokens, or new ones; None where another rank could not make them, or they cannot be told apart."""
    key = make_key(recipe, tokenizer)
    if key is None:
        return None
    folder = find_folder(recipe.data.cache)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / (key + SUFFIX)
    with path.with_suffix(".lock").open("a+b") as lock:
        has_waited = _wait_for_lock(lock, path, tell)
        is_there = path.exists()
        if is_there:
            fcntl.flock(lock, fcntl.LOCK_UN)  # ranks read at the same time
            if kept := read_tokens(path, tokenizer):
                return kept
            _wait_for_lock(lock, path, tell)  # damaged: one rank makes it anew
            if kept := read_tokens(path, tokenizer):
                return kept
        if has_waited and not is_there:
            return None
        return _make(recipe, tokenizer, path, tell)


def _wait_for_lock(lock: Any, path: Path, tell: Callable[[str], None]) -> bool:
    """Take the lock; whether another process had it. The system takes it from a process that dies."""
    has_waited, teller = False, Teller(tell)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return has_waited
        except BlockingIOError:
            has_waited = True
        with contextlib.suppress(OSError, ValueError):  # not there yet, or half written
            done, total = json.loads(path.with_suffix(".progress").read_text(encoding="utf-8"))
            teller(int(done), int(total))
        time.sleep(_POLL_S)


def _make(recipe: Recipe, tokenizer: Any, path: Path, tell: Callable[[str], None]) -> RunData:
    """Make tokens while holding the lock, and keep them if the disk lets us."""
    progress, teller = path.with_suffix(".progress"), Teller(tell)

    def see(done: int, total: int) -> None:
        teller(done, total)
        with contextlib.suppress(OSError):
            progress.write_text(json.dumps([done, total]), encoding="utf-8")

    try:
        made = load_data(recipe, tokenizer, see)
    finally:
        with contextlib.suppress(OSError):
            progress.unlink(missing_ok=True)
    if make_key(recipe, tokenizer) + SUFFIX != path.name:  # type: ignore[operator]  # it had one before
        return made  # the rows were changed meanwhile
    try:
        write_tokens(path, made)
        prune(path.parent)
    except OSError as error:
        tell(f"{path.parent}: tokens are not kept: {error.strerror}")
    return made


def find_folder(wish: str) -> Path:
    """Where tokens are kept on this node: what ``data.cache`` says; raises OSError where there is no such place."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(os.path.expanduser(os.path.join(base, "dcu-launch", "tokens") if wish == "auto" else wish))
    if not folder.is_absolute():
        raise OSError(f"{folder} is no absolute path")
    return folder


def count_bytes(recipe: Recipe) -> int:
    """Of all files of rows; 0 where they cannot be seen."""
    try:
        return sum(file.stat().st_size for path in _data_paths(recipe) for file in list_files(path))
    except OSError:
        return 0


def _data_paths(recipe: Recipe) -> list[Path]:
    return [resolve_data_path(path) for path in (recipe.data.path, recipe.data.eval_path) if path]


def make_key(recipe: Recipe, tokenizer: Any) -> str | None:
    """The name for what these rows become: a hash of rows, tokenizer, settings and our own code; None if it cannot be told."""
    identity = identify_tokenizer(tokenizer)
    if identity is None:
        return None
    settings = asdict(recipe.data)
    for name in ("cache", "packing", "pack_length"):  # they change nothing of it
        del settings[name]
    parts = [json.dumps(settings, sort_keys=True), str(recipe.train.seed), identity]
    files = [file for path in _data_paths(recipe) for file in list_files(path)]
    parts += [f"{file} {_hash_file(file)}" for file in files]
    parts += [_hash_file(Path(__file__).with_name(name)) for name in _CODE]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def identify_tokenizer(tokenizer: Any) -> str | None:
    """All of a tokenizer that decides what a text becomes; None for one in Python that comes from no folder."""
    import tokenizers
    import transformers

    chat = json.dumps(getattr(tokenizer, "chat_template", None), sort_keys=True)
    parts = [
        type(tokenizer).__name__, transformers.__version__, tokenizers.__version__, chat,
        str(tokenizer.special_tokens_map), str(tokenizer.all_special_ids),
        # such a template writes the day into each row
        str(date.today()) if "strftime_now" in chat else "",
    ]  # fmt: skip
    backend, folder = getattr(tokenizer, "backend_tokenizer", None), Path(str(tokenizer.name_or_path))
    if backend is not None and hasattr(backend, "to_str"):
        parts.append(hashlib.sha256(backend.to_str().encode()).hexdigest())
    elif folder.is_dir():
        files = sorted({file for pattern in _TOKENIZER_FILES for file in folder.glob(pattern)})
        parts += [f"{file.name} {_hash_file(file)}" for file in files]
    else:
        return None
    return "\0".join(parts)


def _hash_file(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_tokens(path: Path, data: RunData) -> None:
    """Keep tokens: a SHA-256 and, behind it, safetensors; written aside and moved into place."""
    from safetensors.torch import save

    tensors = {**_flatten("train", data.train), **_flatten("eval", data.eval)}
    info = {
        "template": data.template.name, "bos": data.template.bos, "messages": data.messages, "facts": data.facts,
    }  # fmt: skip
    content = save(tensors, metadata={"info": json.dumps(info)})
    partial = path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(hashlib.sha256(content).digest())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_tokens(path: Path, tokenizer: Any) -> RunData | None:
    """Kept tokens; None unless they are there, whole and this user's own."""
    from safetensors.torch import load

    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            digest, content = file.read(_DIGEST), file.read()
    except OSError:
        return None
    if hashlib.sha256(content).digest() != digest:
        return None
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    info = json.loads(header["__metadata__"]["info"])
    with contextlib.suppress(OSError):
        os.utime(path)  # the last used one is pruned last
    template = Template(info["template"], tokenizer, tuple(info["bos"]))
    train, held = (_unflatten(name, tensors) for name in ("train", "eval"))
    return RunData(template, train, held, tuple(info["messages"]), info["facts"])


def _flatten(name: str, tokens: Tokens) -> dict[str, Any]:
    import torch

    def join(code: str, values: Iterable[int], dtype: Any) -> Any:
        flat = array(code, values)
        return torch.frombuffer(flat, dtype=dtype) if flat else torch.empty(0, dtype=dtype)

    return {
        f"{name}.ids": join("i", itertools.chain.from_iterable(row.ids for row in tokens.rows), torch.int32),
        f"{name}.learn": join(
            "B", itertools.chain.from_iterable(row.learn for row in tokens.rows), torch.uint8
        ),
        f"{name}.lengths": join("i", tokens.lengths, torch.int32),
    }


def _unflatten(name: str, tensors: dict[str, Any]) -> Tokens:
    ids, learn = tensors[f"{name}.ids"].tolist(), tensors[f"{name}.learn"].bool().tolist()
    ends = list(itertools.accumulate(tensors[f"{name}.lengths"].tolist(), initial=0))
    return make_tokens([Encoded(ids[a:b], learn[a:b]) for a, b in itertools.pairwise(ends)])


def prune(folder: Path) -> None:
    """Delete what was used longest ago until files and bytes are within bounds, and what no process works at any more."""
    found = []
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # another process prunes too
            seen = file.stat()
            if file.suffix == SUFFIX:
                found.append((seen.st_mtime, seen.st_size, file))
            elif (
                file.suffix in (".partial", ".progress", ".lock") and time.time() - seen.st_mtime > 24 * 3600
            ):
                file.unlink()
    total = 0
    for number, (_, size, file) in enumerate(sorted(found, reverse=True), start=1):
        total += size
        if number > MOST_FILES or (total > MOST_BYTES and number > 1):
            with contextlib.suppress(OSError):
                file.unlink()
                file.with_suffix(".lock").unlink(missing_ok=True)
