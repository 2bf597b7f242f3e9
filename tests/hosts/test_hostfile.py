"""Hostfile text into hosts, and every way in which it can be refused."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.base.errors import HostfileError
from launcher.hosts.host import Host, label_of, unique_labels
from launcher.hosts.hostfile import (
    MAX_BAD_LINES,
    local_hosts,
    parse_hostfile,
    read_hostfile,
    split_words,
)
from launcher.hosts.target import BadWord

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


def parse_one(line: str) -> Host:
    hosts = parse_hostfile(line, "hf")
    assert len(hosts) == 1
    return hosts[0]


def hosts_or_message(text: str) -> list[Host] | str:
    try:
        return parse_hostfile(text, "hf")
    except HostfileError as error:
        return error.message


def refusal(text: str) -> str:
    with pytest.raises(HostfileError) as caught:
        parse_hostfile(text, "hf")
    assert caught.value.exit_code == 2
    return caught.value.message


def test_every_key_reaches_its_field():
    host = parse_one(
        "alice@node02:2222 slots=4 devices=3,2,1,0 python=/opt/py/bin/python setup=/opt/dtk/env.sh "
        "setup=module:dtk/25.04 key=~/.ssh/id_dcu addr=10.0.0.17 env.NCCL_SOCKET_IFNAME=ib1 env.PATH+=/x env.FOO-"
    )
    assert host == Host(
        name="node02",
        address="10.0.0.17",
        port=2222,
        user="alice",
        key="~/.ssh/id_dcu",
        slots=4,
        devices=("3", "2", "1", "0"),
        python="/opt/py/bin/python",
        setup=("/opt/dtk/env.sh", "module:dtk/25.04"),
        env={"NCCL_SOCKET_IFNAME": "ib1", "PATH+": "/x", "FOO-": ""},
        source="hf:1",
        is_local=False,
    )


@pytest.mark.parametrize(
    ("word", "name", "user", "port", "is_local"),
    [
        ("node01", "node01", None, None, False),
        ("node01:22", "node01", None, 22, False),
        ("alice@node01", "node01", "alice", None, False),
        ("alice@corp@node01:1", "node01", "alice@corp", 1, False),
        ("CORP\\alice@node01", "node01", "CORP\\alice", None, False),
        ("10.0.0.1:65535", "10.0.0.1", None, 65535, False),
        ("fd00::17", "fd00::17", None, None, False),
        ("FD00:0::17", "fd00::17", None, None, False),
        ("[fd00::17]", "fd00::17", None, None, False),
        ("[fd00::17]:22", "fd00::17", None, 22, False),
        ("bob@[fd00::17]:2222", "fd00::17", "bob", 2222, False),
        ("fe80::1%eth0", "fe80::1%eth0", None, None, False),
        ("localhost", "localhost", None, None, True),
        ("127.0.0.1", "127.0.0.1", None, None, True),
        ("::1", "::1", None, None, True),
        ("[::1]", "::1", None, None, True),
        ("localhost:2222", "localhost", None, 2222, False),
        ("root@localhost", "localhost", "root", None, False),
        ("my_alias-1.lan", "my_alias-1.lan", None, None, False),
    ],
)
def test_first_word(word: str, name: str, user: str | None, port: int | None, is_local: bool):
    host = parse_one(word)
    assert (host.name, host.user, host.port, host.is_local) == (name, user, port, is_local)
    assert host.slots is None


def test_form_of_the_file_does_not_matter():
    text = "\ufeff# note\r\n\r\n \t\r\nnode01\tslots=4 # trailing\r\n  node02   slots=3\t# another\n\n#node03\nnode04"
    hosts = parse_hostfile(text, "hf")
    assert [(host.name, host.slots, host.source) for host in hosts] == [
        ("node01", 4, "hf:4"),
        ("node02", 3, "hf:5"),
        ("node04", None, "hf:8"),
    ]


def test_range_shares_port_user_and_keys_and_keeps_the_written_order():
    hosts = parse_hostfile("bob@node[09-11,3]:2222 devices=4,5 env.A=1", "hf")
    assert [host.name for host in hosts] == ["node09", "node10", "node11", "node3"]
    assert {(host.user, host.port, host.devices, host.slots) for host in hosts} == {
        ("bob", 2222, ("4", "5"), 2)
    }
    assert all(host.env == {"A": "1"} and host.source == "hf:1" for host in hosts)


def test_two_dimensional_range_of_addresses():
    hosts = parse_hostfile("10.0.[0-1].[1-2]", "hf")
    assert [host.name for host in hosts] == ["10.0.0.1", "10.0.0.2", "10.0.1.1", "10.0.1.2"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a b\tc", ["a", "b", "c"]),
        ("""a env.X="b c" d='e # f' """, ["a", "env.X=b c", "d=e # f"]),
        (r'a x="say \"hi\" \\ \n"', ["a", 'x=say "hi" \\ \\n']),
        ("a x='' y=\"\"", ["a", "x=", "y="]),
        ("a x=1#2 #3", ["a", "x=1#2"]),
        ("''", [""]),
        (r"a x=c:\d", ["a", r"x=c:\d"]),
        ("", []),
        ("# only", []),
    ],
)
def test_split_words(text: str, words: list[str]):
    assert split_words(text) == words


def test_values_in_quotes():
    host = parse_one("""n env.A="1 # 2" 'env.B=x y' env.C='{"k": "v"}' env.D= python="/opt/my py/python" """)
    assert host.env == {"A": "1 # 2", "B": "x y", "C": '{"k": "v"}', "D": ""}
    assert host.python == "/opt/my py/python"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("W1 slots=four", "slots=four is not a whole number from 1 to 1024; expected: slots=N"),
        ("W1 slots=0", "slots=0 is not a whole number"),
        ("W1 slots=-1", "slots=-1 is not a whole number"),
        ("W1 slots=4abc", "slots=4abc is not a whole number"),
        ("W1 slots=1025", "slots=1025 is not a whole number"),
        ("W1 slots=４", "full-width character U+FF14"),
        ("W1 slots=", "slots= has no value; expected: slots=N"),
        ("W1 slots=4 slots=4", "slots= stands twice"),
        ("W1 slots=x slots=4", "slots= stands twice"),
        ("W1 8", "'8' is not key=value; expected: slots=8"),
        ("W1 rubbish", "'rubbish' is not key=value; expected: key=value words"),
        ("W1 slot=8", "unknown key 'slot', did you mean slots=?"),
        ("W1 Slots=8", "unknown key 'Slots', did you mean slots=?"),
        ("W1 pythno=x", "unknown key 'pythno', did you mean python=?"),
        ("W1 gpus=8", "unknown key 'gpus', did you mean slots=N?"),
        ("W1 port=22", "unknown key 'port', did you mean host:port?"),
        ("W1 zzz=1", "unknown key 'zzz'; expected: slots= devices= python= setup= key= addr= env.NAME="),
        ("W1 =1", "unknown key ''; expected"),
        ("W1 devices=0,0", "devices=0,0 names a card twice"),
        ("W1 devices=0,00", "devices=0,00 names a card twice"),
        ("W1 devices=0-3", "devices=0-3 is not a list of card numbers"),
        ("W1 devices=0,", "devices=0, is not a list"),
        ("W1 devices=", "devices= has no value"),
        ("W1 slots=3 devices=0,1", "devices= names 2 card(s), slots= says 3; expected: slots=2"),
        ("W1 devices=0 env.HIP_VISIBLE_DEVICES=1", "both choose the cards"),
        ("W1 python=", "python= has no value"),
        ("W1 key=a key=b", "key= stands twice"),
        ("W1 setup=module:", "setup=module: names nothing"),
        ("W1 addr=10.0.0.1:22", "addr=10.0.0.1:22: '10.0.0.1:22' is neither"),
        ("W1 addr=10.0.0.300", "neither a host name nor an IPv4 address"),
        ("W[1-2] addr=10.0.0.1", "addr= on a line that means 2 hosts"),
        ("W1 env.=1", "variable '': not a name that a shell can hold"),
        ("W1 env.A.B=1", "variable 'A.B': not a name"),
        ("W1 env.RANK=1", "variable 'RANK': set by the launcher for each rank"),
        ("W1 env.MASTER_ADDR=n", "use --master-addr"),
        ("W1 env.UID=1", "readonly in bash"),
        ("W1 env.A=1 env.A+=2", "env.A stands twice"),
        ("W1 env.A", "env.A is not complete"),
        ("W1 env.A-=1", "env.A- is not complete"),
        ("W1 env.A+", "env.A+ is not complete"),
        ('W1 env.A="1', 'a quote " is not closed'),
        ("slots=4", "the line begins with a key, not with a host"),
        ("-oProxyCommand=x", "is not a host name: '-' cannot stand there"),
        (".node", "'.node' is not a host name"),
        ("a" * 254, "longer than 253 characters"),
        ("a/../etc", "'/' cannot stand there"),
        ("a$(id)", "'$' cannot stand there"),
        ("节点1", "'节' cannot stand there"),
        ("node1\u3000slots=4", "full-width character U+3000"),
        ("node1\u00a0slots=4", "the character U+00A0"),
        ("8", "'8' is neither a host name nor an IPv4 address"),
        ("10.0.0", "'10.0.0' is neither a host name nor"),
        ("node1,node2", "is more than one host; expected: one host a line"),
        ("''", "'' has no host name"),
        ("alice@", "'alice@' has no host name"),
        ("@node1", "'' is not a user name"),
        ("-x@node1", "'-x' is not a user name"),
        ("node1:", "port '' is not a number"),
        ("node1:0", "port '0' is not a number"),
        ("node1:65536", "port '65536' is not"),
        ("node1:22x", "port '22x' is not"),
        ("node1:22:23", "'node1:22:23' is neither host:port nor an IPv6 address"),
        ("[fd00::17", "'[fd00::17' is not an address in brackets"),
        ("[fd00::17]22", "'[fd00::17]22' is not an address in brackets"),
        ("[fd00::zz]:22", "'fd00::zz' is neither"),
        ("fe80::1%", "'' is not an interface name"),
        ("node[1-3", "bracket without its partner"),
        ("node1-3]", "bracket without its partner"),
        ("node[1-", "bracket without its partner"),
        ("node[]", "'' is not a number or a range"),
        ("node[a-c]", "'a-c' is not a number or a range"),
        ("node[3-1]", "'3-1' is not a range"),
        ("node[01-002]", "'01-002' is not a range"),
        ("node[1-99999999]", "means more than 4096 hosts"),
        ("node[1-100][1-100]", "means more than 4096 hosts"),
        ("node[1-3,2]", "host node2 is already on this line"),
    ],
)
def test_bad_line_is_refused_with_place_text_and_cure(line: str, problem: str):
    message = refusal(f"good1\n{line}\ngood2")
    first, *rest = message.split("\n")
    assert first.startswith("hf:2: ")
    assert problem in message
    assert "; expected: " in first
    assert rest[-1].startswith("    ")
    if line.isascii() and len(line) < 160:
        assert rest[-1] == f"    {line}"


def test_all_bad_lines_are_told_at_once_and_good_ones_not():
    message = refusal("W0 slots=2\nW1 slots=four\nW2\nW3 slots=0 slot=1\n W0\tslots=4abc")
    assert message.split("\n") == [
        "hf:2: slots=four is not a whole number from 1 to 1024; expected: slots=N, the number of ranks, as in slots=8",
        "    W1 slots=four",
        "hf:4: slots=0 is not a whole number from 1 to 1024; expected: slots=N, the number of ranks, as in slots=8",
        "hf:4: unknown key 'slot', did you mean slots=?; "
        "expected: slots= devices= python= setup= key= addr= env.NAME=",
        "    W3 slots=0 slot=1",
        "hf:5: slots=4abc is not a whole number from 1 to 1024; expected: slots=N, the number of ranks, as in slots=8",
        "hf:5: host W0 is already on line 1; expected: each host once; containers on one host differ by port",
        "    W0 slots=4abc",
    ]


def test_hosts_of_a_range_given_twice_are_told_in_one_line():
    message = refusal("node[1-9]\nnode2\nnode[3-5]")
    assert "hf:2: host node2 is already on line 1;" in message
    assert "hf:3: hosts node[3-5] are already on line 1;" in message
    assert message.count("already") == 2


@pytest.mark.parametrize("pair", [("localhost", "127.0.0.1"), ("127.0.0.1", "LOCALHOST:22")])
def test_this_machine_by_two_names(pair: tuple[str, str]):
    first, second = pair
    assert f"hf:2: {second} is this machine, which is already on line 1;" in refusal(f"{first}\n{second}")
    assert len(parse_hostfile(f"{first}\n127.0.0.1:2222\n", "hf")) == 2


@pytest.mark.parametrize("second", ["node01", "NODE01", "bob@node01", "node01:22"])
def test_same_host_twice(second: str):
    assert "is already on line 1" in refusal(f"node01\n{second}")


def test_containers_on_one_host_differ_by_port():
    hosts = parse_hostfile("node01\nnode01:2222\nnode01:2223\nfd00::1\n[fd00::1]:23\nother", "hf")
    assert [label_of(host) for host in hosts] == [
        "node01", "node01:2222", "node01:2223", "fd00::1", "[fd00::1]:23", "other",
    ]  # fmt: skip
    assert unique_labels(hosts) == [
        "node01:22", "node01:2222", "node01:2223", "[fd00::1]:22", "[fd00::1]:23", "other",
    ]  # fmt: skip


@pytest.mark.parametrize("line", [
    "W1 slots=0 env.HF_TOKEN=hunter2",
    "W1 slots=0 env.HF_TOKEN+=hunter2",
    "W1 slots=0 env.HF_TOKEN='x hunter2'",
    """W1 slots=0 "env.HF_TOKEN=x hunter2" """,
    """W1 slots=0 env.HF_TOKEN=x"y hunter2" """,
    "W1 slots=0 HF_TOKEN=hunter2",
    "W1 env.HF_TOKEN='x hunter2",
    "W1 env.HF_TOKEN=hunter2 env.HF_TOKEN=hunter2",
    "slots=0 env.HF_TOKEN=hunter2",
])  # fmt: skip
def test_no_secret_in_messages(line: str):
    message = refusal(line)
    assert "hunter2" not in message
    assert "***" in message


def test_other_text_of_a_bad_line_stays_readable():
    assert "    W1 slots=0 key=~/.ssh/id env.A=1 env.MY_KEY=*** addr=a" in refusal(
        "W1 slots=0 key=~/.ssh/id env.A=1 env.MY_KEY=x addr=a"
    )


def test_long_and_binary_lines_are_shortened_and_counted():
    message = refusal("\n".join(["\x1b[31m" + "x" * 1000] * (MAX_BAD_LINES + 7)))
    assert message.endswith("and 7 more bad lines")
    assert "\x1b" not in message
    assert max(len(line) for line in message.split("\n") if line.startswith("    ")) == 164


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "\ufeff"])
def test_no_hosts(text: str):
    assert refusal(text) == "hf: no hosts in it"


def test_files_that_cannot_be_read(tmp_path: Path):
    missing = tmp_path / "nope.txt"
    with pytest.raises(HostfileError) as caught:
        read_hostfile(missing)
    assert caught.value.message == f"{missing}: no such hostfile"
    with pytest.raises(HostfileError, match="Is a directory"):
        read_hostfile(tmp_path)
    with pytest.raises(HostfileError, match="cannot be read"):
        read_hostfile("a\0b")
    (tmp_path / "utf16").write_bytes("node01".encode("utf-16"))
    with pytest.raises(HostfileError, match="not UTF-8 text"):
        read_hostfile(tmp_path / "utf16")


def test_read_hostfile_tells_the_path_in_messages(tmp_path: Path):
    path = tmp_path / "my hosts.txt"
    path.write_text("W1 slots=0\n")
    with pytest.raises(HostfileError) as caught:
        read_hostfile(str(path))
    assert caught.value.message.startswith(f"{path}:1: ")
    assert "dcu-launch hosts --example" in caught.value.hint


@pytest.mark.parametrize("slots", [None, 3])
def test_local_hosts(slots: int | None):
    assert local_hosts(slots) == [Host(name="localhost", slots=slots, source="this machine", is_local=True)]


def test_hosts_are_frozen():
    host = parse_one("n env.A=1")
    with pytest.raises(TypeError):
        host.env["A"] = "2"  # type: ignore[index]


SHIPPED = {
    "containers.txt": 3,
    "ipv6.txt": 3,
    "one-node.txt": 1,
    "per-host-nic.txt": 2,
    "ranges.txt": 9,
    "two-nodes.txt": 2,
}


def test_shipped_hostfiles_are_the_known_ones():
    assert sorted(path.name for path in HOSTFILES.iterdir()) == sorted(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_hostfile(name: str):
    hosts = read_hostfile(HOSTFILES / name)
    assert len(hosts) == SHIPPED[name]
    assert all(host.slots for host in hosts)
    commented = [line[4:] for line in (HOSTFILES / name).read_text().splitlines() if line.startswith("#   ")]
    for line in commented:  # what a newcomer would uncomment must be right as well
        assert len(parse_hostfile(line, "commented")) == 1


GRAMMAR_PIECES = st.sampled_from(
    ["node", "[1-3]", "[01-", "slots=", "devices=", "0,1", "env.A", "env.HF_TOKEN=", "=", "+", "-", ":22", "::", "@", "[",
     "]", "'", '"', "\\", "#", " ", "\t", "\n", "\r\n", "\ufeff", "\0", "，", "setup=", "key=", "addr=", "%", ","]
)  # fmt: skip


@given(st.one_of(st.text(max_size=80), st.lists(GRAMMAR_PIECES, max_size=25).map("".join)))
def test_garbage_raises_nothing_but_hostfile_errors(text: str):
    hosts = hosts_or_message(text)
    if isinstance(hosts, str):
        assert hosts.startswith("hf:")
        return
    assert hosts
    assert len(set(unique_labels(hosts))) == len(hosts)
    for host in hosts:
        assert host.name
        assert not host.name.startswith(("-", "."))
        assert "/" not in host.name
        assert host.slots is None or host.slots >= 1
        assert not host.devices or len(host.devices) == host.slots


@given(st.binary(max_size=60))
def test_binary_files_raise_nothing_but_hostfile_errors(data: bytes):
    assert hosts_or_message(data.decode("latin-1"))


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6))
def test_quoted_words_come_back_whole(words: list[str]):
    quoted = ['"' + word.replace("\\", "\\\\").replace('"', '\\"') + '"' for word in words]
    assert split_words(" ".join(quoted)) == words


@given(st.text(alphabet="ab'\" \t#\\=", max_size=20))
def test_split_words_never_fails_otherwise_than_told(text: str):
    open_quotes = [quote for quote in "'\"" if quote in text]
    with nullcontext() if not open_quotes else suppress(BadWord):
        assert sum(map(len, split_words(text))) <= len(text)


def test_a_line_that_nobody_meant_is_refused_at_once():
    begun = time.monotonic()
    with pytest.raises(HostfileError) as caught:
        parse_hostfile("node01\n" + "x" * 3_000_000 + "\nnode02 env.A=" + "y" * 20_000 + "\n", "hosts")
    assert time.monotonic() - begun < 2
    assert "hosts:2: a line of 3,000,000 characters" in caught.value.message
    assert (
        "hosts:3: a line of 20,013 characters; expected: at most 16,384; long values from --env-file"
        in caught.value.message
    )
    assert len(caught.value.message) < 1000
