"""``dcu-launch constraints``: a pip file that keeps an environment's torch and brings what goes with it.

Reads the metadata of the environment of one interpreter on this machine; installs nothing, asks no index.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping

import click

from launcher import __version__
from launcher.base.errors import UsageError
from launcher.preflight.stack import Pin, Stack, choose_stack, is_accepted, is_pep440
from launcher.preflight.version import parse_wheel

#: what a vendor builds for one DTK, or what its builds were compiled against: stays as it is, whoever made it
VENDOR = frozenset({
    "torch", "torchvision", "torchaudio", "torchtext", "triton", "pytorch-triton-rocm", "flash-attn",
    "flash-mla", "xformers", "vllm", "lmslim", "sglang", "sgl-kernel", "deepspeed", "apex",
    "transformer-engine", "megatron-core", "bitsandbytes", "fastpt", "tilelang", "aiter", "lightop",
    "dgl", "torch-cluster", "torch-scatter", "torch-sparse", "onnxruntime", "numpy", "mpi4py", "ucx-py",
    "hcusmi",
})  # fmt: skip
OLDEST_PYTHON = (3, 10)
_LIST = """
import json, sys
from importlib.metadata import distributions
found = []
for each in distributions():
    if each.metadata["Name"]:
        found.append((each.metadata["Name"], each.version, str(getattr(each, "_path", ""))))
json.dump({"python": sys.version_info[:2], "installed": found}, sys.stdout)
"""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--python", metavar="PATH", help="Interpreter whose environment is read; default: this one.")
def constraints(python: str | None) -> None:
    """Print a pip file that keeps this node's torch and takes the newest training stack that it admits.

    Use it as: dcu-launch constraints > stack.txt, then python -m pip install --no-deps -r stack.txt
    """
    click.echo(write_constraints(python), nl=False)


def write_constraints(python: str | None) -> str:
    """The file's text.

    Raises:
        UsageError: the interpreter does not run, is too old for ranks, or has no torch that a stack goes with.
    """
    path = python or sys.executable
    version, installed, folders = list_installed(path)
    if version < OLDEST_PYTHON:
        shown = ".".join(map(str, version))
        raise UsageError(
            f"{path} is Python {shown}; ranks need 3.10 or newer", "name another one with --python"
        )
    if "torch" not in installed:
        raise UsageError(
            f"{path} has no torch",
            "install the PyTorch of your DTK first (docs/install.md), or name its interpreter with --python",
        )
    torch = installed["torch"]
    stack = choose_stack(torch, version)
    if stack is None:
        raise UsageError(
            f"{path} has torch {torch}; no training stack is known for one that old",
            "scripts can be launched with it; recipes need torch 1.13 or newer",
        )
    head = f"torch {torch} on Python {'.'.join(map(str, version))}"
    return "\n".join([*_opening(head, path), *_kept(installed, folders), *_brought(stack, installed)]) + "\n"


def list_installed(python: str) -> tuple[tuple[int, int], dict[str, str], dict[str, str]]:
    """Python's version, and versions and metadata folders of all distributions by normalized name.

    Raises:
        UsageError: the interpreter does not run, or is older than 3.8.
    """
    try:
        done = subprocess.run([python, "-I", "-c", _LIST], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--python {python}: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit {done.returncode}"]
        raise UsageError(
            f"--python {python}: {lines[-1]}", "dcu-launch needs Python 3.8 or newer to look at it"
        )
    found = json.loads(done.stdout)
    major, minor = found["python"]
    # reversed: of two with one name, the first on sys.path is the one that is imported
    rows = [(_normalize(name), str(text), folder) for name, text, folder in reversed(found["installed"])]
    versions, folders = {row[0]: row[1] for row in rows}, {row[0]: row[2] for row in rows}
    return (major, minor), versions, folders


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _is_kept(name: str, version: str) -> bool:
    return name in VENDOR or parse_wheel(version).flavor in ("dtk", "rocm")


def _opening(head: str, python: str) -> Iterator[str]:
    yield f"# What goes with {head}. Made by dcu-launch {__version__}."
    yield f"# Install it with:  {python} -m pip install --no-deps -r THIS_FILE"
    yield "# --no-deps: pip shall work nothing out. What is here is complete; left to itself, pip takes a torch from its index"
    yield "# where the installed one seems too old to it."


def _kept(installed: Mapping[str, str], folders: Mapping[str, str]) -> Iterator[str]:
    kept = {name: version for name, version in sorted(installed.items()) if _is_kept(name, version)}
    yield ""
    yield "# Installed, and to stay as it is"
    yield from (f"{name}=={version}" for name, version in kept.items() if is_pep440(version))
    unreadable = {name: version for name, version in kept.items() if not is_pep440(version)}
    if not unreadable:
        return
    yield ""
    yield "# Installed, and to stay as it is; no pins, since Python's packaging cannot read such versions. Beside them"
    yield "# transformers cannot be imported (InvalidVersion), and pip from 24.1 on ends with an error, though after its work."
    yield "# Cure, before anything else: spell them as PEP 440 wants it. In a shell, without the #:"
    for name, version in unreadable.items():
        old, mended = folders[name], _mend(version)
        new = old.replace(version, mended)
        yield f"#   mv {shlex.quote(old)} {shlex.quote(new)}"
        yield f"#   sed -i 's/^Version: .*/Version: {mended}/' {shlex.quote(new)}/METADATA"


def _mend(version: str) -> str:
    """The same version as PEP 440 spells it: one ``+``, the other ones dots."""
    base, _, local = version.partition("+")
    return f"{base}+{re.sub(r'[^a-zA-Z0-9.]+', '.', local)}"


def _brought(stack: Stack, installed: Mapping[str, str]) -> Iterator[str]:
    until = f" to below {stack.torch_below}" if stack.torch_below else " on"
    yield ""
    yield f"# The newest training stack for torch {stack.torch_from}{until}; trained with {stack.tried}."
    yield f"# No newer one: {stack.why}."
    for name, version in stack.packages.items():
        if not _is_kept(name, installed.get(name, "")):
            yield f"{name}=={version}"
    found = [(name, _verdict(name, pin, stack, installed)) for name, pin in sorted(stack.beside.items())]
    staying = [f"{name}=={installed[name]}" for name, verdict in found if verdict == "stays"]
    missing = [f"{name}=={stack.beside[name].version}" for name, verdict in found if verdict == "comes"]
    if staying:
        yield from ("", "# Needed beside it: installed, and will do", *staying)
    if missing:
        yield from ("", "# Needed beside it: missing, or of a version that will not do", *missing)


def _verdict(name: str, pin: Pin, stack: Stack, installed: Mapping[str, str]) -> str:
    """``stays`` as installed, ``comes`` anew, or ``unneeded``: kept for other reasons, or wanted by what does not come."""
    version = installed.get(name, "")
    if version and _is_kept(name, version):
        return "unneeded"
    if pin.wanted_by and _verdict(pin.wanted_by, stack.beside[pin.wanted_by], stack, installed) == "stays":
        return "stays" if version and is_pep440(version) else "unneeded"
    will_do = not pin.wanted_by and version and is_pep440(version) and is_accepted(version, pin.accepts)
    return "stays" if will_do else "comes"
