"""An environment of exactly the packages that a node has by the usual recipes: the closure of their requirements.

Made of links into this environment, so that it costs a second and not a gigabyte.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

NODE_PACKAGES = ("torch", "accelerate", "transformers", "peft", "datasets", "safetensors")


def closure(names: tuple[str, ...]) -> dict[str, Distribution]:
    """The distributions that these need, without extras, themselves included."""
    found: dict[str, Distribution] = {}
    left = list(names)
    while left:
        key = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if key in found:
            continue
        try:
            found[key] = distribution(key)
        except PackageNotFoundError:
            continue  # optional on this platform
        for text in found[key].requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                left.append(requirement.name)
    return found


def make_node_python(folder: Path) -> Path:
    """Make the environment and return its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python3*/site-packages"))
    for held in closure(NODE_PACKAGES).values():
        tops = {Path(str(file)).parts[0] for file in held.files or () if Path(str(file)).parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            source = Path(str(held.locate_file(top)))
            if source.exists() and not (site / top).exists():
                os.symlink(source, site / top)
    return folder / "bin" / "python"
