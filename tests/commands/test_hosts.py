"""The table of a hostfile, and the example."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.base.errors import HostfileError, UsageError
from launcher.commands.hosts import EXAMPLE, hosts, show_hosts
from launcher.hosts.hostfile import parse_hostfile

TEXT = """\
node01 slots=4
alice@node02:2222 slots=4 devices=3,2,1,0 env.HF_TOKEN=hunter2 env.X-
node[03-05] slots=8 python=/opt/py/bin/python setup=a.sh setup=module:dtk
node[9,7] slots=1
localhost slots=2 env.A="x y"
"""


@pytest.fixture
def hostfile(tmp_path: Path) -> str:
    path = tmp_path / "hosts"
    path.write_text(TEXT)
    return str(path)


def test_table(hostfile: str):
    assert show_hosts(hostfile).split("\n") == [
        "node  host         user   port          slots  ranks  settings",
        "0     node01       -      -             4      0-3",
        "1     node02       alice  2222          4      4-7    devices=3,2,1,0 env.HF_TOKEN=*** env.X-",
        "2-4   node[03-05]  -      -             8      8-31   python=/opt/py/bin/python setup=a.sh setup=module:dtk",
        "5     node9        -      -             1      32",
        "6     node7        -      -             1      33",
        "7     localhost    -      none (local)  2      34-35  env.A=x y",
        "",
        "8 hosts, 36 ranks",
        "",
    ]


def test_ranks_are_not_told_where_slots_are_unknown(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("a slots=2\nb[1-2]\nc slots=1\n")
    lines = show_hosts(str(path)).split("\n")
    assert [line.split()[5] for line in lines[1:2]] == ["0-1"]
    assert lines[2].split() == ["1-2", "b[1-2]", "-", "-", "all", "cards", "?"]
    assert lines[3].split() == ["3", "c", "-", "-", "1", "?"]
    assert lines[5] == "4 hosts; ranks as many as there are cards on b[1-2]"
    assert "4 hosts, 7 ranks" in show_hosts(str(path), ranks_per_host=2)


def test_without_a_hostfile_it_is_this_machine():
    assert "0     localhost  -     none (local)  3      0-2" in show_hosts(None, ranks_per_host=3)
    assert show_hosts(None, ranks_per_host=1).endswith("1 host, 1 rank\n")


def test_large_hostfile_is_one_row(tmp_path: Path):
    path = tmp_path / "hosts"
    path.write_text("n[0001-4000] slots=8\n")
    assert show_hosts(str(path)).split("\n")[1].split() == [
        "0-3999",
        "n[0001-4000]",
        "-",
        "-",
        "8",
        "0-31999",
    ]


def test_bad_hostfile(tmp_path: Path):
    with pytest.raises(HostfileError, match="no such hostfile"):
        show_hosts(str(tmp_path / "nope"))


def test_example_is_a_hostfile_and_so_is_each_commented_line():
    assert show_hosts(None, example=True) == EXAMPLE
    assert len(parse_hostfile(EXAMPLE, "example")) == 2
    commented = [line.removeprefix("#   ") for line in EXAMPLE.split("\n") if line.startswith("#   ")]
    assert [len(parse_hostfile(line, "example")) for line in commented] == [1, 1, 12, 1, 1, 1, 1, 1]


def test_command(hostfile: str):
    for words in (["--hosts", hostfile], [hostfile]):
        result = CliRunner().invoke(hosts, words)
        assert result.exit_code == 0
        assert result.output == show_hosts(hostfile)
    assert CliRunner().invoke(hosts, ["--example"]).output == EXAMPLE
    assert isinstance(CliRunner().invoke(hosts, ["--hosts", "a", "b"]).exception, UsageError)
