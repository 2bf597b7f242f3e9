"""The recipes that come with the package: ``configs/`` of the repository, ``launcher/recipes`` where it is installed."""

from __future__ import annotations

from pathlib import Path

from launcher.base.errors import UsageError


def shipped_recipes() -> dict[str, Path]:
    """Name -> file of each recipe."""
    folder = Path(__file__).resolve().parent.parent / "recipes"
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def read_shipped(name: str) -> str:
    """The text of a recipe; raises UsageError that names those there are."""
    files = shipped_recipes()
    if name.removesuffix(".yaml") not in files:
        raise UsageError(f"--recipe {name}: expected one of {', '.join(files)}")
    return files[name.removesuffix(".yaml")].read_text(encoding="utf-8")
