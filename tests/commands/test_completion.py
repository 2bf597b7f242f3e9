"""What shells propose, asked of the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.base.errors import UsageError
from launcher.cli import VERBS
from launcher.commands.completion import SHELLS, make_completion

DCU_LAUNCH = str(Path(sys.executable).parent / "dcu-launch")


def script(shell: str) -> str:
    return subprocess.run(
        [DCU_LAUNCH, "--completion", shell], capture_output=True, text=True, check=True
    ).stdout


def propose(text: str, *words: str) -> list[str]:
    """What bash proposes for the last of the words."""
    asked = 'COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _dcu_launch; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-uc", f"{text}\n{asked}", "bash", "dcu-launch", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_bash_proposes_verbs_options_and_choices() -> None:
    text = script("bash")
    assert propose(text, "") == list(VERBS)
    assert propose(text, "at") == ["attach"]
    assert propose(text, "logs", "--ra") == ["--rank", "--ranks"]
    assert propose(text, "--det") == ["--detach"]
    assert propose(text, "--hosts", "h", "--transport", "o") == ["openssh"]
    assert propose(text, "--hosts", "") == []  # a file: bash's own
    assert propose(text, "train.py", "--det") == []  # the script's
    assert propose(text, "ps", "--names") == []
    assert "--detach" not in propose(text, "check", "-")


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_its_script(shell: str, tmp_path: Path) -> None:
    text = script(shell)
    if shutil.which(shell):
        command = {
            "bash": ["bash", "--norc", "-euc"],
            "zsh": ["zsh", "-fec"],
            "fish": ["fish", "--no-config", "-c"],
        }
        done = subprocess.run(
            [*command[shell], text],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert all(verb in text for verb in VERBS)
    assert "--names" not in text.replace("ps --names 2>/dev/null", "")


def test_another_shell_is_refused() -> None:
    for shell in ("", "csh"):
        with pytest.raises(UsageError, match="expected bash, zsh, fish"):
            make_completion(shell, {})
