"""A script that tells what it was started with, and the means to start it here or on the lab's hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.whole_path.conftest import rank_logs

#: one JSON line, in ASCII: bytes that are no text survive as lone surrogates
SCRIPT = """\
import json, os, sys, time
for path in sys.argv[1:2]:
    if path.startswith("@wait-for="):
        open(path[10:] + os.environ["RANK"], "w").close()
        while not os.path.exists(path[10:]):
            time.sleep(0.02)
facts = {"rank": int(os.environ["RANK"]), "argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(),
         "python": sys.executable, "cpus": sorted(os.sched_getaffinity(0)), "umask": os.umask(0o22)}
print(json.dumps(facts), flush=True)
"""
#: what a shell, a split, a format or a print would spoil; the last one is no text at all
NASTY = [
    "--x=a b", '{"a": [1, "b c"]}', "a;touch /tmp/pwn", "$HOME", "$(touch /tmp/pwn)", "`touch /tmp/pwn`", "it's",
    'say "hi"', "", "*", "two\nlines", "中文", "-", "--", "\\", "tab\there", "%s {0}", "é\udcff",
]  # fmt: skip


def write_script(folder: Path) -> str:
    """The script in a folder; its name."""
    (folder / "facts.py").write_text(SCRIPT)
    return "facts.py"


def read_facts(run_dir: Path) -> list[dict[str, Any]]:
    """What each rank told, by rank."""
    told = [
        json.loads(line)
        for log in rank_logs(run_dir)
        for line in log.split("\n")
        if line.startswith('{"rank"')
    ]
    return sorted(told, key=lambda facts: facts["rank"])


def launch_here(
    folder: Path, *words: str, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run dcu-launch on this machine in a folder, with a login's variables and these."""
    program = Path(sys.executable).with_name("dcu-launch")
    base = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": os.environ["HOME"], "LANG": "C.UTF-8"}
    return subprocess.run(
        [program, *words], cwd=folder, env={**base, **(env or {})}, capture_output=True, timeout=timeout,
        encoding="utf-8", errors="surrogateescape",
    )  # fmt: skip


def facts_here(folder: Path, *words: str, env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """What the ranks of a run on this machine told."""
    write_script(folder)
    done = launch_here(folder, "--run-dir", "run", *words, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_facts(folder / "run")


def facts_in_lab(lab: Any, folder: Path, hosts: str, *words: str, **run: Any) -> list[dict[str, Any]]:
    """What the ranks of a run from host 1 told; ``hosts`` is the text of the hostfile."""
    write_script(folder)
    (folder / "hosts").write_text(hosts)
    arguments = ["--hosts", folder / "hosts", "--run-dir", folder / "run", *words]
    done = lab.launch(arguments, **{"cwd": folder, "timeout": 60, **run})
    assert done.returncode == 0, done.stdout + done.stderr
    return read_facts(folder / "run")
