"""What ``--deepspeed`` and ``--accelerate-config`` ask for, as one record for plan and preflight. Runs on the head."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from launcher.base.env_file import EnvOp
from launcher.base.errors import ConfigError

#: an option with all the spellings it has in a script's text
_OPTION = re.compile(r"""add_argument\(\s*((?:['"]-[^'"]*['"]\s*,?\s*)+)""")
_LOCAL_RANK_OPTIONS = ("--local_rank", "--local-rank")


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """Settings that reach a script through variables.

    Attributes:
        named: changes that anything the user names (``--env``, hostfile, ...) may still overrule.
        variables: the launcher's own, which nothing overrules.
        files: paths that every node must have.
        notes: what of a file was left out, and why.
        local_rank_option: what ``--local-rank-arg`` appends, without ``=N``; empty: nothing.
    """

    named: tuple[EnvOp, ...] = ()
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: tuple[str, ...] = ()
    uses_deepspeed: bool = False
    notes: tuple[str, ...] = ()
    local_rank_option: str = ""


def add_deepspeed(settings: ScriptSettings, path: str, workdir: str) -> ScriptSettings:
    """The settings with DeepSpeed switched on, set up by a JSON file.

    Args:
        workdir: working folder of the ranks, in which a relative path is looked for on nodes.

    Raises:
        ConfigError: the file cannot be used, or the settings contradict it.
    """
    if settings.uses_deepspeed:
        raise ConfigError(
            f"--deepspeed {path} and the Accelerate configuration (distributed_type: DEEPSPEED) both set DeepSpeed up",
            "name the JSON file once: as deepspeed_config_file there, or by --deepspeed",
        )
    if any(op.name == "ACCELERATE_USE_CPU" for op in settings.named):
        raise ConfigError(f"use_cpu: true of the Accelerate configuration cannot go with --deepspeed {path}")
    there = node_path(path, workdir)
    variables = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": there,
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": "true" if read_zero_stage(path) == 3 else "false",
    }
    files = (*settings.files, there)
    return replace(settings, variables=variables, files=files, uses_deepspeed=True)


def node_path(path: str, workdir: str) -> str:
    """The absolute path of a file on nodes: relative ones lie below the ranks' working folder."""
    return os.path.normpath(os.path.join(workdir, os.path.expanduser(path)))


def read_zero_stage(path: str) -> int:
    """The ZeRO stage of a DeepSpeed configuration, 0 where it names none.

    Raises:
        ConfigError: it cannot be read, is no JSON object, or its stage is none of 0 to 3.
    """
    try:
        config = json.loads(Path(path).expanduser().read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"DeepSpeed configuration {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"DeepSpeed configuration {path} is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"DeepSpeed configuration {path}:{error.lineno}: not JSON: {error.msg}",
            "JSON has no comments and no comma before a closing bracket",
        ) from None
    if not isinstance(config, dict):
        raise ConfigError(f"DeepSpeed configuration {path}: expected an object {{...}} of settings")
    zero = config.get("zero_optimization", {})
    stage = zero.get("stage", 0) if isinstance(zero, dict) else zero
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise ConfigError(f"DeepSpeed configuration {path}: zero_optimization.stage is {stage!r}, not 0 to 3")
    return int(stage)


def find_local_rank_option(script: str) -> str | None:
    """The script's own option for its local rank, as its text spells it; None when it has none or cannot be read."""
    try:
        text = Path(script).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    spellings = {
        word for option in _OPTION.findall(text) for word in re.findall(r"""['"]([^'"]+)['"]""", option)
    }
    return next((option for option in _LOCAL_RANK_OPTIONS if option in spellings), None)
