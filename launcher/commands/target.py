"""TARGET and ARGS -> what is to run: a recipe with its settings, a script or a module. Runs on the head."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.base.errors import UsageError

DEFAULT_RECIPE = "dcu-launch.yaml"
DEMO = "demo"
VERB_NAMES = (
    "run", "check", "hosts", "env", "constraints", "submit", "ps", "logs", "attach", "stop", "save",
    "init", "generate", "merge", "estimate", "report", "diagnose",
)  # fmt: skip
#: missed most when they stand behind the script, where the script gets them
OUR_OPTIONS = ("--hosts", "--dry-run", "--nproc", "--run-dir", "--transport", "--start")
_OVERRIDE = re.compile(r"[A-Za-z_][\w.]*\+?=")


@dataclass(frozen=True, slots=True)
class Target:
    """What is to run.

    Attributes:
        kind: ``recipe``, ``script`` or ``module``.
        name: file, module, or ``demo``.
        recipe: resolved settings; None for scripts and modules.
        arguments: of scripts and modules.
    """

    kind: str
    name: str
    recipe: Mapping[str, Any] | None
    arguments: tuple[str, ...]


def read_target(words: Sequence[str], as_module: bool) -> Target:
    """Decide what TARGET is and read it.

    Raises:
        UsageError: it is missing, or of no known kind.
        ConfigError: a recipe or an override is wrong.
    """
    if as_module:
        if not words:
            raise UsageError("-m needs the name of a module")
        return Target("module", words[0], None, tuple(words[1:]))
    if not words or _OVERRIDE.match(words[0]):
        return _read_recipe(DEFAULT_RECIPE if Path(DEFAULT_RECIPE).exists() else None, words)
    name, arguments = words[0], tuple(words[1:])
    suffix = Path(name).suffix
    if suffix in (".yaml", ".yml"):
        return _read_recipe(name, arguments)
    if suffix == ".py":
        if not Path(name).exists():
            raise UsageError(f"there is no script {name}", "paths are relative to the working folder")
        return Target("script", name, None, arguments)
    raise UsageError(f"{name!r} is neither a recipe (*.yaml), a script (*.py) nor key=value", _hint_for(name))


def _hint_for(name: str) -> str:
    near = difflib.get_close_matches(name, VERB_NAMES, n=1, cutoff=0.7)
    if name in VERB_NAMES:
        return f"a verb stands first: dcu-launch {name} ..."
    if Path(name).is_file():
        return f"a hostfile is named by --hosts: --hosts {name}"
    if near:
        return f"did you mean: dcu-launch {near[0]}"
    return f"verbs are {', '.join(VERB_NAMES)}; for a module: dcu-launch -m {name}"


def warn_of_stray_options(target: Target, also: Collection[str] = ()) -> str:
    """A warning of options of ours behind a script that knows none of that name: meant for us, most likely; or nothing.

    Args:
        also: options of the verb, beside those that are missed most.
    """
    if target.kind != "script":
        return ""
    text = Path(target.name).read_text(encoding="utf-8", errors="replace")
    named = [word.partition("=")[0] for word in target.arguments]
    ours = {*OUR_OPTIONS, *also}
    stray = [name for name in dict.fromkeys(named) if name in ours and name.lstrip("-") not in text]
    if not stray:
        return ""
    return (
        f"{', '.join(stray)} behind {target.name} goes to the script; options of dcu-launch stand before it"
    )


def _read_recipe(path: str | None, overrides: Sequence[str]) -> Target:
    from launcher.base.recipe import load_recipe

    return Target("recipe", path or DEMO, load_recipe(path, list(overrides)), ())
