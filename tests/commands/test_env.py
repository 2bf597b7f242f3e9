"""The page that says which variable goes where, and why."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from launcher.base.errors import UsageError
from launcher.commands.env import env, show_env
from launcher.hosts.hostfile import parse_hostfile

HOSTS = parse_hostfile("n[1-3]\nn4 env.NCCL_SOCKET_IFNAME=ib1\nlocalhost", "hf")
ENVIRON = {
    "NCCL_DEBUG": "INFO",
    "HF_TOKEN": "hunter2",
    "PATH": "/bin",
    "BASH_FUNC_ml%%": "() { :; }",
    "A.B": "1",
    "UID": "0",
    "RANK": "7",
    "HIP_VISIBLE_DEVICES": "1",
    "SOME_API_KEY": "hunter2",
}


def show(explain: bool = False, **changes) -> str:
    inputs = {
        "environ": ENVIRON,
        "config_env": {},
        "env_files": [],
        "env_options": [],
        "hosts": HOSTS,
    } | changes
    return show_env(**inputs, explain=explain)


def block(text: str, head: str) -> list[str]:
    return [
        " ".join(line.split())
        for line in text.split(f"\n{head}:\n")[1].split("\n\n")[0].rstrip("\n").split("\n")
    ]


def test_what_goes_to_each_set_of_equal_hosts():
    text = show(env_options=["FOO=a b", "LD_LIBRARY_PATH+=/x", "GONE-"], config_env={"N": 1})
    common = [
        "set HF_TOKEN=*** pattern HF_* (before set-up)",
        "set NCCL_DEBUG=INFO pattern NCCL_* (before set-up)",
        "set N=1 config env (after set-up)",
        "set FOO=a b --env (after set-up)",
        "prepend LD_LIBRARY_PATH=/x --env (after set-up)",
        "unset GONE --env (after set-up)",
    ]
    assert block(text, "n[1-3]")[:6] == common
    assert block(text, "n4")[:7] == [*common, "set NCCL_SOCKET_IFNAME=ib1 hostfile (after set-up)"]
    assert "default HSA_FORCE_FINE_GRAIN_PCIE=1 on DCU nodes, where still unset (after all)" in block(
        text, "n4"
    )
    local = block(text, "localhost")
    assert local[1] == "set HIP_VISIBLE_DEVICES=1 pattern HIP_* (before set-up)"
    assert local[-1] == "inherited all else: ranks start on this machine"
    assert "hunter2" not in text


def test_what_stays_is_told_once_by_reason():
    text = show()
    assert block(text, "not sent to n[1-4]") == [
        "not a name that a shell can hold:",
        "A.B",
        "a shell function:",
        "BASH_FUNC_ml%%",
        "card numbers differ from node to node: use devices= or env.NAME= in the hostfile, or --env:",
        "HIP_VISIBLE_DEVICES",
        "belongs to this machine or login:",
        "PATH",
        "set by the launcher for each rank:",
        "RANK",
        "no pattern matches it; --env sends it:",
        "SOME_API_KEY",
        "readonly in bash:",
        "UID",
    ]
    assert block(text, "not sent to localhost") == ["set by the launcher for each rank:", "RANK"]


def test_explain_gives_a_line_each():
    lines = block(show(explain=True), "not sent to n[1-4]")
    assert lines[0] == "A.B not a name that a shell can hold"
    assert len(lines) == 7
    assert "PATH belongs to this machine or login" in lines


def test_every_variable_of_the_head_is_accounted_for():
    for explain in (False, True):
        text = show(explain)
        assert all(name in text for name in ENVIRON)


def test_values_cannot_spoil_the_screen():
    text = show(environ={"NCCL_X": "a\nb\x1b[2J\udc80", "A\nB": "1", "NCCL_LONG": "y" * 500})
    assert "NCCL_X=a\\nb\\x1b[2J\\udc80" in text
    assert "A\\nB" in text
    assert "y" * 100 not in text
    text.encode()
    assert "y" * 500 in show(environ={"NCCL_LONG": "y" * 500}, explain=True)


def test_mistakes_end_it():
    with pytest.raises(UsageError, match="'RANK': set by the launcher"):
        show(env_options=["RANK=1"])


def test_command(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "TRACE")
    hostfile = tmp_path / "hosts"
    hostfile.write_text("n1\n")
    result = CliRunner().invoke(env, ["--hosts", str(hostfile), "--env", "X=1", "-m", "module", "--explain"])
    assert result.exit_code == 0, result.output
    assert "NCCL_DEBUG=TRACE" in result.output
    assert "X=1" in result.output


def test_what_the_launcher_adds_by_itself_is_shown_too():
    defaults, own = (
        show()
        .split("\ndefaults, where nothing else sets them:\n")[1]
        .split("\nthe launcher's own, above all else:\n")
    )
    lines = [line.split() for line in defaults.split("\n")]
    assert ["HSA_FORCE_FINE_GRAIN_PCIE=1", "nodes", "with", "DCUs"] in lines
    assert ["PYTHONUNBUFFERED=1", "ranks"] in lines
    assert any(line[0].startswith("OMP_NUM_THREADS=") for line in lines)
    assert {"RANK", "MASTER_ADDR", "TORCHELASTIC_RUN_ID"} <= set(own.split())
