"""``python -m tests.lab [N]``: a shell on the first of N hosts; the lab ends with it. Needs root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.lab.lab import Lab


def main(words: list[str]) -> int:
    """Open the lab, give it to a person, end it."""
    lab = Lab(Path(__file__).resolve().parents[2] / ".lab" / "shell")
    try:
        names = lab.up(int(words[0]) if words else 2)
        sys.stderr.write(f"{' '.join(names)}: this is a shell on {names[0]}; the lab ends with it\n")
        return subprocess.run(lab.command(1, ["bash"], lab.shared), env=lab.environment()).returncode
    finally:
        lab.down()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
