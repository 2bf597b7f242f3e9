"""What holds the tree together beyond the layers that ``make check`` looks at: what is sent, start-up, the README's tree."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAUNCHER = ROOT / "launcher"
DCU_LAUNCH = Path(sys.executable).parent / "dcu-launch"
#: what the agent, the probe and the ranks' parent need on a node, where the oldest Python may be 3.8
SENT = sorted((LAUNCHER / "node").glob("*.py"))
#: what no light verb loads, but for the few that its test names
HEAVY = {"torch", "accelerate", "deepspeed", "transformers", "peft", "datasets", "fabric", "invoke", "paramiko",
         "omegaconf", "rich", "matplotlib", "ClusterShell"}  # fmt: skip


def _name_of(path: Path) -> str:
    return path.stem


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def test_files_are_found() -> None:
    assert len(SENT) >= 5


@pytest.mark.parametrize("path", SENT, ids=_name_of)
def test_what_is_sent_to_nodes_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), str(path), feature_version=(3, 8))


@pytest.mark.parametrize("path", SENT, ids=_name_of)
def test_what_is_sent_to_nodes_needs_the_standard_library_alone(path: Path) -> None:
    # the process from which ranks are forked has one more task: to import torch, inside a function
    allowed = sys.stdlib_module_names | {"launcher"} | ({"torch"} if path.stem == "importer" else set())
    tree = ast.parse(path.read_text())
    assert {name.partition(".")[0] for name in _imports(tree)} <= allowed
    ours = {name for name in _imports(tree) if name.startswith("launcher.")}
    assert all(name.startswith("launcher.node") for name in ours)
    at_import = {name.partition(".")[0] for node in tree.body for name in _imports_at_top(node)}
    assert at_import <= sys.stdlib_module_names | {"launcher"}


def _imports_at_top(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from _imports(node)


# -- start-up


def _best_ms(commands: dict[str, Sequence[str]], rounds: int = 7) -> dict[str, float]:
    """The quickest of several runs of each command, in turn, so that a busy moment hits all of them."""
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(rounds):
        for name, words in commands.items():
            start = time.perf_counter()
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            best[name] = min(best[name], (time.perf_counter() - start) * 1000)
    return best


def test_help_and_dry_run_start_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node[01-08] slots=8\n")
    commands: dict[str, Sequence[str]] = {
        "bare": [sys.executable, "-c", "pass"],
        "help": [str(DCU_LAUNCH), "--help"],
        "dry-run": [str(DCU_LAUNCH), "--hosts", str(hostfile), "--dry-run"],
    }
    limits = {"help": 5, "dry-run": 15}
    # the machine may be busy with something else for a while: a limit is broken if it is broken three times
    for _ in range(3):
        best = _best_ms(commands)
        ratios = {name: best[name] / best["bare"] for name in limits}
        if all(ratios[name] <= limit for name, limit in limits.items()):
            return
    shown = ", ".join(f"--{name} {ratio:.1f} (at most {limits[name]})" for name, ratio in ratios.items())
    pytest.fail(f"start-up as multiples of bare Python's {best['bare']:.0f} ms: {shown}")


@pytest.mark.parametrize(
    ("words", "may_load"),
    [(["--help"], set()), (["--version"], set()), (["hosts", "{hostfile}"], {"ClusterShell"}),
     (["--hosts", "{hostfile}", "--dry-run"], {"ClusterShell", "omegaconf", "rich"})],
)  # fmt: skip
def test_light_verbs_load_nothing_heavy(words: list[str], may_load: set[str], tmp_path: Path) -> None:
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("node[01-02] slots=8\n")
    words = [word.format(hostfile=hostfile) for word in words]
    code = "import sys; from launcher.cli import main; main(sys.argv[1:]); sys.stderr.write(' '.join(sys.modules))"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=tmp_path, env=env
    )
    assert done.stdout, done.stderr
    assert HEAVY & set(done.stderr.split()) <= may_load


# -- the README


def _readme_tree() -> dict[str, str]:
    """Path -> what its line says, from the block after the heading; indented lines lie in the folder above."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"^## The tree\n.*?^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert block, "README.md has no block after the heading '## The tree'"
    tree: dict[str, str] = {}
    folders: list[tuple[int, str]] = []
    for line in block.group(1).splitlines():
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        name, _, meaning = line.strip().partition(" ")
        folders = [entry for entry in folders if entry[0] < indent]
        path = "".join(folder for _, folder in folders) + name
        tree[path] = meaning.strip()
        if name.endswith("/"):
            folders.append((indent, name))
    return tree


def test_the_readme_shows_the_tree_that_is_there() -> None:
    tree = _readme_tree()
    missing = sorted(path for path in tree if not (ROOT / path).exists())
    assert missing == [], "in the README, not on the disk"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    files = [line for line in tracked if line] or [
        str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()
    ]
    shown = {
        path
        for file in files
        for path in _to_show(file)
        if path not in tree
        and not any(path.startswith(folder) and path != folder for folder in _closed(tree))
    }
    assert sorted(shown) == [], "on the disk, not in the README"
    assert [path for path, meaning in tree.items() if not meaning] == [], (
        "in the README without a word of what it is"
    )


def _to_show(file: str) -> Iterator[str]:
    """The folders and Python modules that a file of the repository asks to be in the tree."""
    parts = file.split("/")
    if parts[0].startswith("."):
        return
    if len(parts) > 1:
        yield parts[0] + "/"
    if parts[0] == "launcher" and file.endswith(".py") and parts[-1] not in ("__init__.py", "__main__.py"):
        yield from ("/".join(parts[:depth]) + "/" for depth in range(2, len(parts)))
        yield file


def _closed(tree: dict[str, str]) -> list[str]:
    """Folders of the tree whose contents it does not list."""
    folders = [path for path in tree if path.endswith("/")]
    return [
        folder for folder in folders if not any(path != folder and path.startswith(folder) for path in tree)
    ]
