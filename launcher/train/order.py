"""Order: what a recipe's rank has to do, from its agent or from the command line. Runs as each rank."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.config import Recipe, config_hash, from_dict
from launcher.base.errors import UsageError
from launcher.train.channel import Channel


@dataclass(frozen=True, slots=True)
class Order:
    """What this rank has to do."""

    recipe: Recipe
    config_hash: str
    run_dir: Path
    run: str
    attempt: int


def read_order(channel: Channel, argv: list[str] | None) -> Order:
    """The order from the agent, or from the command line."""
    if channel.has_agent:
        given = channel.receive("recipe")
        found = config_hash(given["config"])
        if found != given["config_hash"]:
            raise UsageError(
                f"the recipe changed on its way: hash {given['config_hash'][:12]} became {found[:12]}"
            )
        run_dir, run, attempt = Path(given["run_dir"]), str(given["run"]), int(given["attempt"])
        return Order(from_dict(given["config"]), found, run_dir, run, attempt)
    parser = argparse.ArgumentParser(prog="python -m launcher.train", description="Train as one rank.")
    parser.add_argument("--config", required=True, type=Path, help="recipe as JSON, fully resolved")
    parser.add_argument("--run-dir", required=True, type=Path, help="folder for metrics, checkpoints, result")
    options = parser.parse_args(argv)
    try:
        config = json.loads(options.config.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{options.config}: {error}") from error
    run_dir = options.run_dir.absolute()
    return Order(from_dict(config), config_hash(config), run_dir, run_dir.name, 0)


def versions() -> dict[str, Any]:
    """Versions that a manifest records."""
    import accelerate
    import peft
    import torch
    import transformers

    stack = {m.__name__: str(m.__version__) for m in (torch, transformers, peft, accelerate)}
    return {"python": sys.version.split()[0], **stack}
