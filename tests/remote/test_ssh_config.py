"""ssh_config as we read it against ``ssh -G``, which says how OpenSSH itself reads the same files."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from launcher.base.errors import UnreachableError
from launcher.remote.ssh_config import SshConfig, expand, expand_path, pattern_matches

#: keywords that decide how a host is reached, and what ssh says where nothing is set
KEYWORDS = {
    "hostname": None,
    "user": None,
    "port": "22",
    "hostkeyalias": None,
    "identitiesonly": "no",
    "proxyjump": None,
    "proxycommand": None,
    "bindaddress": None,
    "hashknownhosts": "no",
    "userknownhostsfile": None,
}


def of_ssh(file: Path, name: str, *words: str) -> dict[str, list[str]]:
    """What OpenSSH makes of the file for a host."""
    done = subprocess.run(
        ["ssh", "-G", "-F", str(file), *words, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword, []).append(value)
    return found


def assert_same(file: Path, name: str, user: str | None = None, port: int | None = None) -> None:
    """Every keyword that counts is the same for this host."""
    words = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
    theirs = of_ssh(file, name, *words)
    ours = SshConfig([(str(file), str(file.parent))]).settings(name, user, port)
    context = f"{name} in\n{file.read_text()}"
    assert ours.hostname().lower() == theirs["hostname"][0], context
    for keyword, default in KEYWORDS.items():
        if keyword == "hostname" or (keyword == "user" and user) or (keyword == "port" and port):
            continue
        values = ours.all(keyword)
        if not values and keyword in ("user", "userknownhostsfile", "proxycommand", "proxyjump"):
            continue  # ssh says its own default
        mine = " ".join(values) if values and values != ["none"] else default
        told = theirs.get(keyword, [default])[0]
        if keyword in ("identitiesonly", "hashknownhosts") and mine is not None:
            mine, told = mine.lower().replace("true", "yes").replace("false", "no"), told
        assert mine == told, f"{keyword} of {context}"
    keys = list(dict.fromkeys(expand_path(text, ours) for text in ours.all("identityfile")))
    if keys:
        assert keys == [os.path.expanduser(text) for text in theirs["identityfile"]], context


CASES = {
    "first value wins": "Host node01\n  Port 2201\nHost node*\n  Port 2299\n  User worker\n",
    "before the first Host": "User early\nPort 2022\nHost node01\n  User late\n",
    "equals, quotes, case": 'HOST "node01"\n  hostNAME = 10.0.0.7\n\tUSER="name with blank"\n  PORT=   2207\n',
    "comment behind a value": "Host node01 # the first\n  Port 2203 # odd\n  # Port 1\n#User no\n",
    "negated": "Host node* !node01\n  User other\nHost !node02 node*\n  Port 2208\n",
    "question mark": "Host node0?\n  User one\nHost node?\n  User two\n",
    "token": "Host node*\n  HostName %h.cluster.example\n  HostKeyAlias alias-of-nodes\n",
    "percent": "Host node01\n  HostName a%%b\n",
    "several keys": "Host *\n  IdentityFile ~/.ssh/one\n  IdentityFile /etc/two\n  IdentitiesOnly yes\n",
    "jump": "Host node*\n  ProxyJump alice@gate:2222,second\n  ProxyCommand nc %h %p\n",
    "command first": 'Host node*\n  ProxyCommand ssh -W "[%h]:%p" gate # no comment\n  ProxyJump gate\n',
    "match host": "Host node01\n  HostName node01.inner\nMatch host *.inner\n  User inner\n",
    "match originalhost": "Match originalhost node01\n  Port 2210\nMatch originalhost !node01,node*\n  Port 2211\n",
    "match user": "Match user alice\n  Port 2212\nMatch !user alice host node01\n  Port 2213\n",
    "match exec": 'Match host node01 exec "true"\n  Port 2214\nMatch exec "false"\n  User no\n',
    "match exec with tokens": 'Match exec "test %n = node01"\n  Port 2215\n',
    "match all": "Host x\n  User x\nMatch all\n  User everybody\n",
    "match final": "Host node01\n  HostName node01.inner\nMatch final host *.inner\n  User late\nHost *.inner\n  Port 2216\n",
    "known hosts": "Host *\n  UserKnownHostsFile /a/known /b/known\n  HashKnownHosts yes\n  BindAddress 127.0.0.1\n",
    "no newline at the end, CRLF": "Host node01\r\n  Port 2217\r\n  User windows",
    "empty": "",
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_files_mean_what_they_mean_to_ssh(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    file.write_bytes(text.encode())
    for name in ("node01", "node02", "node1", "NODE01", "x"):
        assert_same(file, name)
    assert_same(file, "node01", user="alice")
    assert_same(file, "node01", port=2999)


def test_includes_nest_and_count_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "config"
    inner = tmp_path / "more"
    inner.mkdir()
    (inner / "a.conf").write_text("Host node01\n  User of-a\nHost *\n  Port 2301\n")
    (inner / "b.conf").write_text(f"Include {inner}/deep\nHost node02\n  User of-b\n")
    (inner / "deep").write_text("Host node02\n  Port 2302\n  HostName deep.example\n")
    for text in (
        f"Include {inner}/*.conf\nHost *\n  User last\n",
        f"Host node02\n  Include {inner}/*.conf\n  User in-block\n",
        f"Host other\n  Include {inner}/*.conf\nHost *\n  User last\n",
        f'Include "{inner}/a.conf" {inner}/b.conf {inner}/none.conf\n',
        f"Match host node02\n  Include {inner}/b.conf\n  Port 2303\n",
    ):
        file.write_text(text)
        for name in ("node01", "node02", "other"):
            assert_same(file, name)


@pytest.mark.parametrize("seed", range(24))
def test_random_files_mean_what_they_mean_to_ssh(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    patterns = ["node01", "node*", "!node02", "*", "n?de0?", "gate", "*.inner", "!*"]
    lines = [
        lambda: f"User user{draw.randrange(9)}",
        lambda: f"Port {draw.randrange(2000, 2009)}",
        lambda: f"HostName {draw.choice(['%h.inner', '10.0.0.1', 'real.inner', 'node02'])}",
        lambda: f"IdentityFile ~/.ssh/key{draw.randrange(4)}",
        lambda: f"HostKeyAlias alias{draw.randrange(4)}",
        lambda: f"ProxyJump {draw.choice(['gate', 'none', 'a@gate:22,b'])}",
        lambda: f"IdentitiesOnly {draw.choice(['yes', 'no'])}",
        lambda: "# User nobody",
        lambda: "",
    ]
    heads = [
        lambda: "Host " + " ".join(draw.sample(patterns, draw.randrange(1, 4))),
        lambda: f"Match host {','.join(draw.sample(patterns, 2))}",
        lambda: f"Match originalhost {draw.choice(patterns)} user user{draw.randrange(9)}",
        lambda: "Match all",
    ]
    text = ""
    for _ in range(draw.randrange(1, 7)):
        text += draw.choice(heads)() + "\n" if draw.random() < 0.8 else ""
        for _ in range(draw.randrange(0, 4)):
            text += draw.choice(["  ", "\t", ""]) + draw.choice(lines)() + "\n"
    file = tmp_path / "config"
    file.write_text(text)
    for name in ("node01", "node02", "gate"):
        assert_same(file, name)
    assert_same(file, "node01", user="user3", port=2222)


def test_what_only_ssh_knows_is_refused_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text("Host a\n  User b\nMatch localnetwork 10.0.0.0/8\n  User c\n")
    with pytest.raises(UnreachableError) as caught:
        SshConfig([(str(file), str(tmp_path))]).settings("node01")
    assert caught.value.message == f"{file}:3: Match localnetwork is known to ssh alone"
    assert caught.value.hint == "reach the hosts with --transport openssh"
    file.write_text("Match host\n")
    with pytest.raises(UnreachableError, match="config:1: Match host lacks its value"):
        SshConfig([(str(file), str(tmp_path))]).settings("node01")


def test_a_file_that_is_missing_or_no_text_is_empty(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"Host \xff\xfe\nUser \xff\nHost node01\nPort 2020\n")
    config = SshConfig([(str(tmp_path / "none"), ""), (str(tmp_path / "bytes"), "")])
    assert config.settings("node01").get("port") == "2020"
    assert config.settings("other").values == {}


@pytest.mark.parametrize(
    ("pattern", "text", "held"),
    [
        ("node*", "node", True),
        ("node?", "node", False),
        ("node.1", "nodeX1", False),
        ("[a]", "a", False),
        ("*", "", True),
        ("a*c", "a\nc", True),
    ],
)
def test_patterns_know_two_signs_and_no_more(pattern: str, text: str, held: bool) -> None:
    assert pattern_matches(pattern, text) is held


def test_tokens_are_replaced_and_unknown_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/alice")
    monkeypatch.setenv("KEYS", "/keys")
    found = SshConfig([]).settings("node01", "bob", 2022)
    assert expand("%n %h %p %r %% %d %Z", found) == "node01 node01 2022 bob % /home/alice %Z"
    assert expand_path("~/.ssh/%r-${KEYS}-${NONE_SUCH}", found) == "/home/alice/.ssh/bob-/keys-${NONE_SUCH}"
