"""``--deepspeed``, ``--accelerate-config`` and ``--local-rank-arg``: options that only scripts and modules have. Head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from launcher.base.errors import UsageError
from launcher.commands.target import Target
from launcher.launch.script_settings import ScriptSettings, add_deepspeed, find_local_rank_option

#: option -> (as it is written, what says the same for a recipe)
_FOR_SCRIPTS = {
    "deepspeed": ("--deepspeed", "engine=deepspeed deepspeed.config=FILE"),
    "accelerate_config": ("--accelerate-config", "its own keys, such as train.precision and engine"),
    "local_rank_argument": ("--local-rank-arg", "leave it out, ranks of a recipe know their place"),
}


def read_script_options(options: Mapping[str, Any], target: Target, workdir: str) -> ScriptSettings:
    """The settings that these options ask for.

    Args:
        workdir: working folder of the ranks.

    Raises:
        UsageError: the target is a recipe, or a file cannot be used.
    """
    given = [words for name, words in _FOR_SCRIPTS.items() if options[name]]
    if given and target.kind == "recipe":
        raise UsageError(
            "\n".join(
                f"{option} is for scripts and modules, and {target.name} is a recipe" for option, _ in given
            ),
            "\n".join(f"for a recipe, instead of {option}: {instead}" for option, instead in given),
        )
    settings = ScriptSettings()
    if options["accelerate_config"]:
        from launcher.launch.accelerate_config import read_accelerate_config

        settings = read_accelerate_config(options["accelerate_config"], workdir)
    if options["deepspeed"]:
        settings = add_deepspeed(settings, options["deepspeed"], workdir)
    if options["local_rank_argument"]:
        # as DeepSpeed's launcher writes it, unless the script knows the other spelling alone
        option = find_local_rank_option(target.name) if target.kind == "script" else None
        settings = replace(settings, local_rank_option=option or "--local_rank")
    return settings


def warn_of_local_rank(options: Mapping[str, Any], target: Target) -> str:
    """What to say of a script that has an option for its local rank and is not given it; empty where all is well."""
    if target.kind != "script" or options["local_rank_argument"]:
        return ""
    option = find_local_rank_option(target.name)
    if option is None or any(word.partition("=")[0] == option for word in target.arguments):
        return ""
    return (
        f"{target.name} has an option {option} and is not given it; "
        "unless it reads LOCAL_RANK too, add --local-rank-arg before its name"
    )
