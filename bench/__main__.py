"""``python -m bench``: every measurement with its usual settings, one after another."""

from __future__ import annotations

import runpy
import sys

MEASUREMENTS = ("bench.launch", "bench.fanout", "bench.check", "bench.slurm")


def main() -> None:
    """Run all, or those named."""
    for name in sys.argv[1:] or MEASUREMENTS:
        print(f"== {name}", flush=True)
        sys.argv = [name]
        runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main()
