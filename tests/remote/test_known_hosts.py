"""known_hosts files: the keys that we find are those that OpenSSH's own ssh-keygen finds, and what we add it can read."""

from __future__ import annotations

import base64
import os
import random
import subprocess
from pathlib import Path

import pytest

from launcher.remote.known_hosts import AUTHORITY, REVOKED, KnownHosts, KnownKey, lookup_name


def make_blob(number: int) -> str:
    """A key as ssh-keygen takes it: ssh-ed25519 and 32 bytes."""
    kind, key = b"ssh-ed25519", number.to_bytes(32, "big")
    packed = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, key))
    return base64.b64encode(packed).decode("ascii")


def line_of(names: str, number: int, marker: str = "") -> str:
    return f"{marker} {names} ssh-ed25519 {make_blob(number)} a comment\n".lstrip()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "known_hosts"


def find(file: Path, name: str) -> list[tuple[str, int]]:
    """Markers and line numbers."""
    found = KnownHosts().find([str(file)], name)
    assert all(key.kind == "ssh-ed25519" for key in found)
    return [(key.marker, int(key.where.rpartition(":")[2])) for key in found]


def ask_openssh(file: Path, name: str) -> list[int]:
    """Numbers of the lines that ssh-keygen names for a host."""
    done = subprocess.run(
        ["ssh-keygen", "-F", name, "-f", file], capture_output=True, text=True, check=False, timeout=30
    )
    return [int(line.split()[5]) for line in done.stdout.splitlines() if line.startswith("# Host ")]


def test_names_are_written_as_openssh_writes_them() -> None:
    assert [lookup_name("Node01", 22), lookup_name("Node01", 2222), lookup_name("fd00::17", 22)] == [
        "node01", "[node01]:2222", "fd00::17",
    ]  # fmt: skip


def test_every_kind_of_line(file: Path) -> None:
    file.write_text(
        "# a comment\n\n" + line_of("node01,10.0.0.1", 1) + line_of("[node01]:2222", 2) + line_of("*.lab,!bad.lab", 3)
        + line_of("NODE02", 4) + line_of("*", 5, REVOKED) + line_of("*.lab", 6, AUTHORITY) + "node01 ssh-ed25519\n"
        + line_of("node01", 7, "@unknown") + "node01"
    )  # fmt: skip
    assert find(file, "node01") == [("", 3), (REVOKED, 7)]
    assert find(file, "10.0.0.1") == [("", 3), (REVOKED, 7)]
    assert find(file, "[node01]:2222") == [("", 4), (REVOKED, 7)]
    assert find(file, "a.lab") == [("", 5), (REVOKED, 7), (AUTHORITY, 8)]
    assert find(file, "bad.lab") == [(REVOKED, 7), (AUTHORITY, 8)]
    assert find(file, "Node02") == [("", 6), (REVOKED, 7)]
    (key, _) = KnownHosts().find([str(file)], "node02")
    assert key == KnownKey("ssh-ed25519", make_blob(4), "", f"{file}:6")


def test_files_count_in_their_order_and_missing_ones_are_empty(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("none", "user", "system")]
    files[1].write_text(line_of("node01", 1))
    files[2].write_text(line_of("node01", 2))
    found = KnownHosts().find(map(str, files), "node01")
    assert [key.where for key in found] == [f"{files[1]}:1", f"{files[2]}:1"]


@pytest.mark.parametrize("seed", range(8))
def test_the_same_lines_as_openssh_finds(file: Path, seed: int) -> None:
    draw = random.Random(seed)
    names = ["node01", "node02", "node03", "[node01]:2222", "10.0.0.1", "fd00::1", "[fd00::1]:22", "a.lab"]
    patterns = ["node0?", "*.lab", "*", "node*,!node02", "10.0.0.*", "!a.lab,*.lab"]
    lines = [
        line_of(
            ",".join(draw.sample(names, draw.randint(1, 3)))
            if draw.random() < 0.6
            else draw.choice(patterns),
            number,
        )
        for number in range(12)
    ]
    file.write_text("".join(lines))
    if seed % 2:  # the plain names hashed, patterns stay as they are
        subprocess.run(["ssh-keygen", "-H", "-f", file], capture_output=True, check=True, timeout=30)
        assert "|1|" in file.read_text()
    for name in (*names, "node04", "b.lab", "node01.lab", "10.0.0.9"):
        assert [number for _, number in find(file, name)] == ask_openssh(file, name), (name, file.read_text())


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize("before", ["", line_of("node09", 9), line_of("node09", 9).rstrip("\n")])
def test_a_key_that_is_added_is_found_by_both(tmp_path: Path, before: str, hashed: bool) -> None:
    file = tmp_path / "made" / "known_hosts"
    if before:
        file.parent.mkdir()
        file.write_text(before)
    known = KnownHosts()
    assert known.find([str(file)], "[node01]:2222") == []
    known.add(str(file), "[node01]:2222", "ssh-ed25519", make_blob(1), hashed)
    expected = 2 if before else 1
    assert [(key.blob, key.where) for key in known.find([str(file)], "[node01]:2222")] == [
        (make_blob(1), f"{file}:{expected}")
    ]
    assert ask_openssh(file, "[node01]:2222") == [expected]
    assert ask_openssh(file, "node09") == ([1] if before else [])
    assert ("node01" in file.read_text()) is not hashed
    if not before:
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_two_hashes_of_a_name_differ(file: Path) -> None:
    known = KnownHosts()
    for number in (1, 2):
        known.add(str(file), "node01", "ssh-ed25519", make_blob(number), hashed=True)
    assert len({line.split()[0] for line in file.read_text().splitlines()}) == 2
    assert [key.blob for key in known.find([str(file)], "node01")] == [make_blob(1), make_blob(2)]


def test_what_cannot_be_read_or_written(file: Path) -> None:
    file.write_bytes(
        b"\xff\xfe node01\n|1|no-salt ssh-ed25519 AAAA\n|1|a|b| ssh-ed25519 AAAA\n"
        + line_of("node01", 1).encode()
    )
    assert find(file, "node01") == [("", 4)]
    KnownHosts().add(os.devnull, "node01", "ssh-ed25519", make_blob(1), hashed=False)
    with pytest.raises(OSError, match=r"File exists|Not a directory"):
        KnownHosts().add(f"{file}/under", "node01", "ssh-ed25519", make_blob(1), hashed=False)
