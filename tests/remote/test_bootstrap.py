"""What brings our code to a node: unpacked once, by one of many, never where others can write, old code removed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.remote import bootstrap
from launcher.remote.bootstrap import (
    EXIT_EARLY,
    EXIT_NO_PYTHON,
    Payload,
    make_payload,
    program,
    shell_line,
    shell_words,
)

TOKEN = "0123456789abcdef" * 2
#: in the place of an agent: says what it was given, and how much code there is
AGENT = b"""import os
import launcher.other
def main(home, token, first):
    os.write(1, ("%s %s %s %s" % (home, token, first.decode(), launcher.other.VALUE)).encode())
"""
DAY_S = 86400


def make_code(value: int = 1, more: int = 0) -> Payload:
    files = [
        ("launcher/__init__.py", b""),
        ("launcher/node/__init__.py", b""),
        ("launcher/node/agent.py", AGENT),
    ]
    files += [("launcher/other.py", b"VALUE = %d\n" % value), ("launcher/data.bin", os.urandom(more))]
    return Payload(files)


def bring(payload: Payload, home: Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the short program as a node does; it reads no more than it asked for."""
    given = payload.greeting(TOKEN, b"first") + payload.delivery() if given is None else given
    return subprocess.run(
        [sys.executable, "-E", "-s", "-S", "-u", "-c", program()], input=given, capture_output=True, timeout=30,
        env={"HOME": str(home)}, check=False,
    )  # fmt: skip


def words_of(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / ".cache" / "dcu-launch"


def test_code_is_brought_once_and_then_there(tmp_path: Path, cache: Path) -> None:
    code = make_code()
    expected = [str(cache / code.sha256), TOKEN, "first", "1"]
    assert words_of(bring(code, tmp_path)) == ["DCU-LAUNCH", "NEED", *expected]
    assert words_of(bring(code, tmp_path)) == ["DCU-LAUNCH", "HAVE", *expected]
    other = make_code(2)
    assert words_of(bring(other, tmp_path))[1:] == ["NEED", str(cache / other.sha256), TOKEN, "first", "2"]
    assert sorted(os.listdir(cache)) == sorted([code.sha256, other.sha256])
    assert (cache.stat().st_mode & 0o777, (cache / code.sha256).stat().st_mode & 0o777) == (0o700, 0o755)


def test_nodes_that_share_a_home_folder_unpack_at_once(tmp_path: Path, cache: Path) -> None:
    """All are told NEED or HAVE, all run the whole code, and one folder is left."""
    code = make_code(more=3_000_000)
    greeting = code.greeting(TOKEN, b"first")
    words = [sys.executable, "-E", "-s", "-S", "-u", "-c", program()]
    pipe = subprocess.PIPE
    nodes = [subprocess.Popen(words, stdin=pipe, stdout=pipe, env={"HOME": str(tmp_path)}) for _ in range(8)]
    for node in nodes:
        assert node.stdout is not None
        assert node.stdin is not None
        node.stdin.write(greeting)  # the greeting alone: they are all at the same point
        node.stdin.flush()
    asked = [node.stdout.readline() + node.stdout.readline() for node in nodes if node.stdout]
    assert asked == [b"\nDCU-LAUNCH NEED\n"] * 8
    said = [node.communicate(code.delivery(), timeout=30)[0] for node in nodes]
    assert {text.decode() for text in said} == {f"{cache / code.sha256} {TOKEN} first 1"}
    assert [node.returncode for node in nodes] == [0] * 8
    assert os.listdir(cache) == [code.sha256]
    assert (cache / code.sha256 / "launcher" / "data.bin").stat().st_size == 3_000_000


def test_code_that_no_run_has_used_for_a_month_is_removed_and_nothing_else(
    tmp_path: Path, cache: Path
) -> None:
    old, young = make_code(1), make_code(2)
    for code in (old, young):
        words_of(bring(code, tmp_path))
    (cache / "tokens").mkdir()
    (cache / "tokens" / "rows.safetensors").write_bytes(b"kept by its own rules")
    (cache / "tmpabcd1234").mkdir()  # of an unpacking that was killed
    month_ago = time.time() - 31 * DAY_S
    for name in (old.sha256, "tokens", "tmpabcd1234"):
        os.utime(cache / name, (month_ago, month_ago))
    os.utime(cache / young.sha256, (time.time() - 29 * DAY_S,) * 2)
    new = make_code(3)
    assert words_of(bring(new, tmp_path))[1] == "NEED"
    assert sorted(os.listdir(cache)) == sorted([young.sha256, new.sha256, "tokens"])


def test_what_is_in_use_stays_young(tmp_path: Path, cache: Path) -> None:
    code = make_code()
    words_of(bring(code, tmp_path))
    month_ago = time.time() - 31 * DAY_S
    os.utime(cache / code.sha256, (month_ago, month_ago))
    assert words_of(bring(code, tmp_path))[1] == "HAVE"
    assert time.time() - (cache / code.sha256).stat().st_mtime < 60


@pytest.mark.parametrize("spoil", ["others may write", "a file"])
def test_a_home_that_cannot_be_trusted_or_written_is_not_used(
    tmp_path: Path, cache: Path, spoil: str
) -> None:
    code = make_code()
    if spoil == "a file":
        (tmp_path / ".cache").write_text("")
    else:
        words_of(bring(code, tmp_path))
        (cache / code.sha256 / "launcher" / "other.py").write_text("VALUE = 'planted'\n")
        cache.chmod(0o777)
    place = Path(f"/tmp/dcu-launch-code-{os.getuid()}")
    try:
        assert words_of(bring(code, tmp_path))[1:] == ["NEED", str(place / code.sha256), TOKEN, "first", "1"]
        assert place.stat().st_mode & 0o022 == 0
    finally:
        shutil.rmtree(place / code.sha256, ignore_errors=True)


def test_code_that_others_may_write_is_not_run(tmp_path: Path, cache: Path) -> None:
    code = make_code()
    words_of(bring(code, tmp_path))
    (cache / code.sha256).chmod(0o777)
    assert words_of(bring(code, tmp_path))[1] == "NEED"


@pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
def test_code_that_does_not_arrive_whole_leaves_nothing(tmp_path: Path, cache: Path, part: float) -> None:
    code = make_code(more=200_000)
    whole = code.greeting(TOKEN, b"first") + code.delivery()
    done = bring(code, tmp_path, whole[: int(part * len(whole))])
    assert done.returncode == EXIT_EARLY
    assert not cache.exists() or os.listdir(cache) == []


def test_a_folder_that_is_no_home_and_a_module_of_the_users_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "zipfile.py").write_text("raise SystemExit('the module of a user')\n")
    (tmp_path / "zlib.py").write_text("raise SystemExit('the module of a user')\n")
    code = make_code()
    done = subprocess.run(
        ["/bin/sh", "-c", shell_line(None)], input=code.greeting(TOKEN, b"first") + code.delivery(), cwd=tmp_path,
        capture_output=True, env={"HOME": str(tmp_path), "PATH": "/nowhere", "PYTHONPATH": str(tmp_path)}, check=False,
    )  # fmt: skip
    assert words_of(done)[-2:] == ["first", "1"]


def test_a_node_without_python_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/none/head/python")
    monkeypatch.setattr(bootstrap, "SYSTEM_PYTHONS", ())
    line = shell_line.__wrapped__("~/no python")
    done = subprocess.run(["/bin/sh", "-c", line], capture_output=True, env={"PATH": "/nowhere"}, check=False)
    assert done.returncode == EXIT_NO_PYTHON
    assert done.stdout == b"\nDCU-LAUNCH NONE ~/no python /none/head/python python3 python\n"


@pytest.mark.parametrize("shell", ["sh", "dash", "bash", "zsh", "fish", "csh", "tcsh"])
def test_every_shell_reads_the_words_as_they_are(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell} here: scripts/install-lab")
    words = [
        "/opt/a!b/python", "!!", "!1", "!", "a! b", "it's!", "$HOME", "`x`", '"!x"', "*", "~/p", "", "\u5361!\u5361",
    ]  # fmt: skip
    line = shell_words(
        "exec", sys.executable, "-c", "import sys; sys.stdout.write(ascii(sys.argv[1:]))", *words
    )
    done = subprocess.run([program, "-c", line], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (ascii(words), "")


def test_the_package_is_named_by_its_contents() -> None:
    payload = make_payload()
    assert re.fullmatch(r"[0-9a-f]{64}", payload.sha256)
    assert make_code(1).sha256 == make_code(1).sha256 != make_code(2).sha256
    moved = Payload([("launcher/b.py", b"x"), ("launcher/c.py", b"")])
    assert moved.sha256 != Payload([("launcher/b.py", b""), ("launcher/c.py", b"x")]).sha256
    assert len(payload.delivery()) < 1_500_000
    assert payload.is_delivery(payload.delivery())
