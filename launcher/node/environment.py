"""The variables of the ranks of one node: the node's own, what the head names, what set-up scripts make of it.

Runs in the agent. Order, later wins: the node's own; ``sent``; set-up scripts; ``named``; DCU defaults where unset on
nodes with a DCU; the launcher's own (added when the ranks start).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List, Sequence, Tuple

#: torchrun's variables and ours: a rank never inherits them from whatever started the agent
NEVER_INHERITED = frozenset(
    {
        "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK",
        "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "DCU_LAUNCH_CHANNEL",
        "DCU_LAUNCH_TOKEN",
    }
)  # fmt: skip
NEVER_INHERITED_PREFIXES = ("TORCHELASTIC_", "OMPI_COMM_WORLD_", "PMI_", "PMIX_")
SETUP_LIMIT_S = 60.0
DEFAULT_SETUP = "/opt/dtk/env.sh"

#: sources each file in turn (never under ``set -u``: env.sh of DTK reads unset variables) and prints the result
_SOURCE = (
    '__dcu_steps=("$@"); set --; for __dcu_step in "${__dcu_steps[@]}"; do case $__dcu_step in '
    "module:*) if ! type module >/dev/null 2>&1; then for __dcu_f in /etc/profile.d/modules.sh /etc/profile.d/lmod.sh "
    '/usr/share/modules/init/bash /usr/share/lmod/lmod/init/bash; do [ -r "$__dcu_f" ] && . "$__dcu_f" && break; done; fi; '
    'module load "${__dcu_step#module:}" || exit 91;; '
    'conda:*) __dcu_base=$(conda info --base 2>/dev/null || echo "${CONDA_EXE%/bin/conda}"); '
    'for __dcu_f in "$__dcu_base" "$HOME/miniconda3" "$HOME/anaconda3" /opt/conda; do '
    '[ -r "$__dcu_f/etc/profile.d/conda.sh" ] && . "$__dcu_f/etc/profile.d/conda.sh" && break; done; '
    'conda activate "${__dcu_step#conda:}" || exit 92;; '
    'venv:*) . "${__dcu_step#venv:}/bin/activate" || exit 93;; '
    '*) [ -r "$__dcu_step" ] || { echo "$__dcu_step" >&2; exit 94; }; . "$__dcu_step" || exit 95;; '
    "esac; done >&2; unset __dcu_steps __dcu_step __dcu_f __dcu_base; command env -0"
)

#: exit codes of that script
_OWN_CODES = {
    91: "module load failed",
    92: "conda activate failed",
    93: "there is no such virtual environment",
    94: "there is no such file that this user can read",
    95: "a script failed",
}


class SetupError(Exception):
    """A set-up script failed; the message holds its last lines."""


def own_environment() -> Dict[str, str]:
    """The agent's environment without what no rank may inherit."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in NEVER_INHERITED and not name.startswith(NEVER_INHERITED_PREFIXES)
    }


def apply_operations(variables: Dict[str, str], operations: Sequence[Dict[str, Any]]) -> None:
    """Apply set, prepend and unset operations in order, in place."""
    for operation in operations:
        name, kind, value = operation["name"], operation["operation"], operation.get("value", "")
        if operation.get("if_any") and not any(variables.get(other) for other in operation["if_any"]):
            continue
        if kind == "unset":
            variables.pop(name, None)
        elif kind == "prepend":
            # no separator at an open end: an empty item of a search path means the working folder
            before = variables.get(name) or variables.get(operation.get("fallback", ""), "")
            variables[name] = value + operation.get("separator", ":") + before if before else value
        else:
            variables[name] = value


def source_setup(variables: Dict[str, str], steps: Sequence[str]) -> Dict[str, str]:
    """Run set-up steps once in bash and return the environment they leave.

    Args:
        steps: files, or ``module:NAME``, ``conda:NAME``, ``venv:DIR``.

    Raises:
        SetupError: a step failed, is missing, or took more than ``SETUP_LIMIT_S`` seconds.
    """
    if not steps:
        return variables
    import subprocess  # here: it takes as long to load as Python to start

    expanded = [_expand_home(step) for step in steps]
    try:
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", _SOURCE, "dcu-launch-setup", *expanded],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=SETUP_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise SetupError("set-up (%s) did not end within %d s" % (", ".join(steps), SETUP_LIMIT_S)) from None
    except OSError as error:
        raise SetupError("bash cannot be started for set-up scripts: %s" % error) from None
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().split("\n")[-5:]
        why = _OWN_CODES.get(done.returncode, "it ended the shell with code %d" % done.returncode)
        raise SetupError("set-up (%s): %s: %s" % (", ".join(steps), why, " | ".join(lines)))
    return _parse_environment(done.stdout)


def _expand_home(step: str) -> str:
    """``~`` of a file or of a folder behind ``venv:`` means this node's home."""
    kind, colon, rest = step.partition(":")
    if colon and kind in ("module", "conda", "venv"):
        return kind + colon + (os.path.expanduser(rest) if kind == "venv" else rest)
    return os.path.expanduser(step)


def _parse_environment(output: bytes) -> Dict[str, str]:
    variables: Dict[str, str] = {}
    for entry in output.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name not in (b"_", b"SHLVL", b"OLDPWD"):
            variables[os.fsdecode(name)] = os.fsdecode(value)
    return variables


def make_environment(order: Dict[str, Any]) -> Tuple[Dict[str, str], List[str]]:
    """The environment of this node's ranks and the set-up steps that were run.

    Args:
        order: ``sent``, ``named`` (operations), ``setup`` (steps; None: ``DEFAULT_SETUP`` where it exists).

    Raises:
        SetupError: see ``source_setup``.
    """
    variables = own_environment()
    apply_operations(variables, order.get("sent", ()))
    steps = order.get("setup")
    if not steps:
        steps = [DEFAULT_SETUP] if os.path.exists(DEFAULT_SETUP) else []
    variables = source_setup(variables, steps)
    for name in list(variables):
        if name in NEVER_INHERITED or name.startswith(NEVER_INHERITED_PREFIXES):
            del variables[name]
    apply_operations(variables, order.get("named", ()))
    return variables, list(steps)
