"""What learns, and where the run stands -> a folder that is whole or not there; and back. Rank 0 writes and reads.

A checkpoint is written aside, synced, given a manifest and moved into place with ``os.replace``. Tensors are
safetensors, the rest JSON: nothing here is ever unpickled.

    checkpoints/step-00000100/{trainable.safetensors, optimizer.safetensors, state.json, manifest.json}
    checkpoints/step-00000100/adapter/      in the best one, see ``result``; where the head does not see this folder, its
                                            copy of that adapter is all that a step-00000100 there holds
    checkpoints/{latest, best}      names of folders
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
ADAPTER = "adapter"
_NAME = re.compile(r"step-(\d{8,})")


def checkpoint_folder(run_dir: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run_dir / "checkpoints" / f"step-{step:08d}"


def write_folder(target: Path, write: Callable[[Path], None], facts: dict[str, Any]) -> dict[str, Any]:
    """Make a folder that is whole or not there, and return its manifest.

    Args:
        write: puts the files into the folder it is given.
        facts: go into the manifest beside the files' sizes and sha256.
    """
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write(partial)
    files = {}
    for file in sorted(p for p in partial.rglob("*") if p.is_file()):
        _sync(file)
        files[str(file.relative_to(partial))] = {"size": file.stat().st_size, "sha256": hash_file(file)}
    manifest = {**facts, "files": files}
    (partial / MANIFEST).write_text(json.dumps(manifest, indent=1, ensure_ascii=False), encoding="utf-8")
    _sync(partial / MANIFEST)
    _sync(partial)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(partial, target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)
    return manifest


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def hash_file(path: Path) -> str:
    """SHA-256 of a file, as hex."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder whose files are all there and whole; raises ValueError that says what is not."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = dict(manifest["files"])
    except FileNotFoundError:
        raise ValueError(f"{folder.name}: no {MANIFEST}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder.name}: {MANIFEST} cannot be read: {error}") from None
    for name, facts in files.items():
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{folder.name}: {name} is missing")
        if file.stat().st_size != facts["size"]:
            raise ValueError(
                f"{folder.name}: {name} has {file.stat().st_size} bytes, expected {facts['size']}"
            )
        if hash_file(file) != facts["sha256"]:
            raise ValueError(f"{folder.name}: {name} is not what was written (sha256 differs)")
    return manifest


def list_checkpoints(run_dir: Path) -> list[Path]:
    """The run's checkpoint folders, whole or not, the newest first; copies of an adapter alone are none."""
    return [folder for folder in _list_steps(run_dir) if not _is_copy(folder)]


def _list_steps(run_dir: Path) -> list[Path]:
    folder = run_dir / "checkpoints"
    found = [p for p in folder.iterdir() if _NAME.fullmatch(p.name)] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.name[5:]), reverse=True)


def _is_copy(folder: Path) -> bool:
    """Whether this is what a head brought here of another node's best checkpoint: nothing to go on from."""
    try:
        return [entry.name for entry in folder.iterdir()] == [ADAPTER]
    except OSError:
        return False


def find_newest(run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest whole checkpoint, and why newer ones were passed over."""
    skipped = []
    for folder in list_checkpoints(run_dir):
        try:
            read_manifest(folder)
        except ValueError as error:
            skipped.append(str(error))
        else:
            return folder, skipped
    return None, skipped


def write_checkpoint(
    run_dir: Path,
    step: int,
    tensors: dict[str, dict[str, Any]],
    state: dict[str, Any],
    facts: dict[str, Any],
    add: Callable[[Path], None] | None = None,
) -> Path:
    """Write the checkpoint of a step and point ``latest`` to it.

    Args:
        tensors: file name without ending -> tensors by name.
        add: puts more into the folder, before it has its name.
    """
    from safetensors.torch import save_file

    def write(folder: Path) -> None:
        for name, content in tensors.items():
            whole = {key: value.detach().cpu().contiguous() for key, value in content.items()}
            save_file(whole, folder / f"{name}.safetensors")
        (folder / "state.json").write_text(json.dumps(state, indent=1, ensure_ascii=False), encoding="utf-8")
        if add is not None:
            add(folder)

    target = checkpoint_folder(run_dir, step)
    write_folder(target, write, {"step": step, **facts})
    point(run_dir, "latest", target)
    return target


def adapter_bytes(folder: Path) -> int:
    """How large the adapter in a checkpoint is; 0 without one."""
    return sum(file.stat().st_size for file in (folder / ADAPTER).rglob("*") if file.is_file())


def read_state(folder: Path) -> dict[str, Any]:
    """The state.json of a checkpoint."""
    state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return state


def read_tensors(folder: Path, name: str) -> dict[str, Any]:
    """The tensors of one file of a checkpoint, on the CPU."""
    from safetensors.torch import load_file

    return dict(load_file(folder / f"{name}.safetensors"))


def point(run_dir: Path, word: str, target: Path) -> None:
    """Let ``latest`` or ``best`` name a checkpoint, at once or not at all."""
    file = run_dir / "checkpoints" / word
    partial = file.with_name(f".{word}.partial")
    partial.write_text(target.name + "\n", encoding="utf-8")
    _sync(partial)
    os.replace(partial, file)


def read_pointer(run_dir: Path, word: str) -> str:
    """The name that ``latest`` or ``best`` holds; empty without one."""
    try:
        return (run_dir / "checkpoints" / word).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def prune(run_dir: Path, keep: int) -> list[str]:
    """Delete all but the newest ``keep`` checkpoints and the best one; what could not be deleted is returned.

    Training never stops for this.
    """
    best = read_pointer(run_dir, "best")
    problems = []
    copies = [folder for folder in _list_steps(run_dir) if _is_copy(folder)]
    for folder in [*list_checkpoints(run_dir)[keep:], *copies]:
        if folder.name == best:
            continue
        # renamed first: half a folder never bears a checkpoint's name
        doomed = folder.with_name(f".{folder.name}.old")
        try:
            os.replace(folder, doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            problems.append(f"{folder.name} could not be deleted: {error.strerror}")
    return problems


def sweep(run_dir: Path) -> None:
    """Delete what earlier attempts left half written."""
    for folder in (run_dir, run_dir / "checkpoints"):
        for left in [*folder.glob(".*.partial"), *folder.glob(".*.old")]:
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
