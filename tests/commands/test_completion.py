"""What shells propose, asked of the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
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


def type_into(shell: list[str], folder: Path, setup: str, typed: str) -> str:
    """What an interactive shell on a terminal shows once these keys were typed."""
    pid, terminal = pty.fork()
    if pid == 0:
        path = f"{Path(DCU_LAUNCH).parent}:/usr/bin:/bin"
        os.chdir(folder)
        variables = {"PS1": "READY> ", "TERM": "dumb", "HOME": str(folder), "PATH": path}
        os.execvpe(shell[0], shell, variables)  # noqa: S606
    shown = b""

    def wait_for(mark: bytes) -> None:
        nonlocal shown
        deadline = time.monotonic() + 20
        while mark not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65536)

    try:
        wait_for(b"READY> ")
        shown = b""
        os.write(terminal, f"{setup}; echo SET''UP\n".encode())
        wait_for(b"SETUP")
        wait_for(b"READY> ")
        shown = b""
        os.write(terminal, f"{typed}\t END\n".encode())
        wait_for(b"END")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)
    text = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", shown.decode())
    return text.split(" END")[0].rpartition("READY> ")[2].strip(" \r\n\b")


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("echo dcu-launch; dcu-launch atta", "echo dcu-launch; dcu-launch attach"),
        ("dcu-launch logs --foll", "dcu-launch logs --follow"),
        ("dcu-launch --transport opens", "dcu-launch --transport openssh"),
        ("dcu-launch configs/lo", "dcu-launch configs/lora.yaml"),  # files are the shell's own
        ("dcu-launch stop late", "dcu-launch stop late-run"),
    ],
)
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_tab_key(shell: str, typed: str, shown: str, tmp_path: Path) -> None:
    if not shutil.which(shell):
        assert shell != "bash"
        return
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "lora.yaml").touch()
    (tmp_path / "runs" / "late-run").mkdir(parents=True)
    (tmp_path / "runs" / "late-run" / "summary.json").write_text('{"exit": 0}')
    words = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}
    setup = f'eval "$(dcu-launch --completion {shell})"'
    assert type_into(words[shell], tmp_path, setup, typed).replace("  ", " ") == shown


def test_fish_proposes_the_same(tmp_path: Path) -> None:
    if not shutil.which("fish"):
        return
    for typed, shown in (("atta", "attach"), ("logs --foll", "--follow"), ("--transport o", "openssh")):
        asked = f"dcu-launch --completion fish | source; complete -C 'dcu-launch {typed}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", asked], capture_output=True, text=True, timeout=60,
            env={"PATH": f"{Path(DCU_LAUNCH).parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        )  # fmt: skip
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [shown], done.stderr


def test_another_shell_is_refused() -> None:
    for shell in ("", "csh"):
        with pytest.raises(UsageError, match="expected bash, zsh, fish"):
            make_completion(shell, {})
