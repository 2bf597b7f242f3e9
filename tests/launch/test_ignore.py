"""Patterns of .dcuignore, held to what git does with the same file where git is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.launch.ignore import DEFAULT_PATTERNS, is_ignored, read_rules

PATHS = [
    "a",
    "a.log",
    "b/a.log",
    "b/c/a.log",
    "b/c",
    "b",
    "data/x.bin",
    "data",
    "src/data/x",
    "src/data",
    "[x]",
    "z z",
    "#n",
]

CASES = [
    (["*.log"], {"a.log", "b/a.log", "b/c/a.log"}),
    (["/a.log"], {"a.log"}),
    (["b/*.log"], {"b/a.log"}),
    (["b/**/a.log"], {"b/a.log", "b/c/a.log"}),
    (["**/c"], {"b/c"}),
    (["data/"], {"data", "src/data"}),
    (["/data/"], {"data"}),
    (["data"], {"data", "src/data"}),
    (["b/**"], {"b/a.log", "b/c/a.log", "b/c"}),
    (["?"], {"a", "b", "b/c", "src/data/x"}),
    (["[ab]"], {"a", "b"}),
    (["[!a]"], {"b", "b/c", "src/data/x"}),
    (["*.log", "!a.log"], set()),
    (["*.log", "!/a.log"], {"b/a.log", "b/c/a.log"}),
    (["!a.log", "*.log"], {"a.log", "b/a.log", "b/c/a.log"}),
    (["z z"], {"z z"}),
    (["\\#n"], {"#n"}),
    (["\\[x]"], {"[x]"}),
    (["# a", "", "   ", "/", "!"], set()),
    (["A.LOG", "a.lo", ".log"], set()),
]
FOLDERS = {"b", "b/c", "data", "src/data"}


@pytest.mark.parametrize(("patterns", "expected"), CASES)
def test_patterns(patterns, expected):
    rules = read_rules(patterns)
    assert {path for path in PATHS if is_ignored(path, path in FOLDERS, rules)} == expected


@pytest.mark.skipif(shutil.which("git") is None, reason="no git to compare with")
@pytest.mark.parametrize(("patterns", "expected"), CASES)
def test_git_leaves_out_the_same_files(tmp_path: Path, patterns, expected):
    for path in PATHS:
        if path not in FOLDERS:
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text("")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("\n".join([*patterns, ".gitignore"]) + "\n")
    words = ["git", "ls-files", "-z", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    kept = {path for path in PATHS if path not in FOLDERS and not _below_ignored(path, read_rules(patterns))}
    assert kept == set(listed.split("\0")) - {""}


def _below_ignored(path: str, rules) -> bool:
    parts = path.split("/")
    return any(is_ignored("/".join(parts[:n]), n < len(parts), rules) for n in range(1, len(parts) + 1))


def test_what_is_left_out_by_default():
    rules = read_rules(DEFAULT_PATTERNS)
    left_out = [".git", "pkg/__pycache__", "runs", ".venv"]
    assert all(is_ignored(name, True, rules) for name in left_out)
    assert is_ignored("pkg/m.pyc", False, rules)
    assert is_ignored(".dcu-launch-sync.json", False, rules)
    assert not is_ignored("pkg/runs", True, rules)
    assert not is_ignored(".dcuignore", False, rules)
