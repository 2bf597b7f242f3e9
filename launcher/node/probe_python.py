"""The ranks' interpreter and the versions of its packages, without importing any. Runs in the agent."""

from __future__ import annotations

import os
import sys

from .ask import ask
from .module_folders import find_module_folders
from .paths import read_field

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is not loaded on nodes, see ``agent``
    from typing import Any, Dict, List, Optional, Tuple

#: what is compared between nodes, or tells for which DTK and torch it was built
PACKAGES = (
    "torch", "torchvision", "torchaudio", "transformers", "peft", "accelerate", "datasets", "deepspeed", "safetensors",
    "tokenizers", "numpy", "triton", "flash_attn", "xformers", "transformer_engine", "apex", "bitsandbytes",
    "megatron_core", "vllm", "hcusmi",
)  # fmt: skip
PYTHON_LIMIT_S = 20.0

#: asked of an interpreter that is not the agent's own
_ASK_PYTHON = "import sys,site;print(sys.version.split()[0]);print(*sys.path,sep=chr(10))"
_TORCH_FIELDS = {"__version__": "version", "hip": "hip", "cuda": "cuda"}


def find_python(message: Dict[str, Any], variables: Dict[str, str]) -> Dict[str, Any]:
    """The interpreter of the ranks: ``path``, ``version``, ``packages``; or ``error`` when a named one is missing.

    ``folders`` is where it looks for modules, ``torch_file`` what torch's own version file says, ``wheel_tags`` the
    tags of torch's wheel.
    """
    path, error = _choose_python(message, variables)
    if path is None:
        return {"error": error}
    version = ""
    folders: List[str] = []
    packages: Dict[str, str] = {}
    if _is_own(path):
        version, folders = "%d.%d.%d" % sys.version_info[:3], find_module_folders(variables)
        packages = read_packages(folders)
    if "torch" not in packages:
        # another interpreter; or what a .pth file does as code has to be asked for
        answer = ask([path, "-c", _ASK_PYTHON], variables, PYTHON_LIMIT_S)
        lines = answer.text.split("\n")
        if answer.error or not lines[0][:1].isdigit():
            why = answer.error or "it is no Python: asked for its version it said %r" % lines[0][:60]
            return {"error": "%s does not run: %s" % (path, why)}
        version, folders = lines[0], lines[1:]
        packages = read_packages(folders)
    found = {"path": path, "version": version, "packages": packages, "folders": folders}
    if "torch" in packages:
        found.update(read_torch_files(folders, packages["torch"]))
    return found


def _is_own(path: str) -> bool:
    """Whether this is the agent's own interpreter, of the same virtual environment."""
    own = sys.executable
    return os.path.realpath(path) == os.path.realpath(own) and os.path.dirname(path) == os.path.dirname(own)


def _choose_python(message: Dict[str, Any], variables: Dict[str, str]) -> Tuple[Optional[str], str]:
    """A named interpreter; else the set-up's virtual environment; else the head's path; else ``python3`` on PATH."""
    named = message.get("python")
    if named:
        found = _on_path(os.path.expanduser(named), variables)
        there = "/" in named and os.path.exists(os.path.expanduser(named))
        return found, "%s %s" % (named, "is no program that this user may run" if there else "is missing")
    for root in (variables.get("VIRTUAL_ENV"), variables.get("CONDA_PREFIX")):
        if (
            root
            and root in variables.get("PATH", "")
            and os.access(os.path.join(root, "bin", "python"), os.X_OK)
        ):
            return os.path.join(root, "bin", "python"), ""
    like_head = message.get("like_head")
    if like_head and os.access(like_head, os.X_OK):
        return like_head, ""
    return _on_path("python3", variables), "python3 is not on PATH"


def _on_path(program: str, variables: Dict[str, str]) -> Optional[str]:
    if "/" in program:
        return program if os.access(program, os.X_OK) and not os.path.isdir(program) else None
    for folder in variables.get("PATH", os.defpath).split(":"):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return None


def read_packages(folders: List[str]) -> Dict[str, str]:
    """Versions of ``PACKAGES`` by the names of dist-info folders: no import, little read; the first folder wins."""
    found: Dict[str, str] = {}
    wanted = {name.replace("-", "_"): name for name in PACKAGES}
    for folder in folders:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            if entry.endswith((".dist-info", ".egg-info")):
                name, _, version = entry.rsplit(".", 1)[0].partition("-")
                key = wanted.get(name.lower().replace("-", "_"))
                if key and version and key not in found:
                    if "-" in version or "_" in version:  # a version that could not stand in a file name
                        version = _metadata_version(os.path.join(folder, entry)) or version
                    found[key] = version
    return found


def _metadata_version(folder: str) -> Optional[str]:
    for name in ("METADATA", "PKG-INFO"):
        version = read_field(_head_of(os.path.join(folder, name)), "Version")
        if version:
            return version
    return None


def _head_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(4096)
    except OSError:
        return ""


def read_torch_files(folders: List[str], version: str) -> Dict[str, Any]:
    """``torch_file``: version, hip and cuda as torch's own version.py has them; ``wheel_tags``: such as cp310-cp310-x."""
    found: Dict[str, Any] = {}
    for folder in folders:
        text = _head_of(os.path.join(folder, "torch", "version.py"))
        fields = _read_assignments(text)
        if not fields:
            continue
        found["torch_file"] = {_TORCH_FIELDS[key]: value for key, value in fields.items()}
        wheel = _head_of(os.path.join(folder, "torch-%s.dist-info" % version, "WHEEL"))
        found["wheel_tags"] = [line[4:].strip() for line in wheel.split("\n") if line.startswith("Tag:")]
        break
    return found


def _read_assignments(text: str) -> Dict[str, Optional[str]]:
    """Texts, or None, that are assigned to ``_TORCH_FIELDS``, annotated or not."""
    fields: Dict[str, Optional[str]] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        name, value = name.partition(":")[0].strip(), value.strip()
        if not equals or name not in _TORCH_FIELDS:
            continue
        if value == "None":
            fields[name] = None
        elif value[:1] in ("'", '"') and value[:1] in value[1:]:
            fields[name] = value[1:].partition(value[0])[0]
    return fields
