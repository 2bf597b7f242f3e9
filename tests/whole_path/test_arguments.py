"""Arguments and variables reach every rank byte for byte, on one host and on many; nothing in them ever runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.whole_path.facts import NASTY, facts_here, facts_in_lab

NAMED = [word for number, value in enumerate(NASTY) for word in ("--env", f"NASTY_{number}={value}")]


def check(facts: list[dict], num_ranks: int) -> None:
    assert len(facts) == num_ranks
    for told in facts:
        assert told["argv"] == NASTY
        assert [told["env"][f"NASTY_{number}"] for number in range(len(NASTY))] == NASTY


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_on_this_machine(tmp_path: Path, start):
    pwn = Path("/tmp/pwn")
    pwn.unlink(missing_ok=True)
    check(facts_here(tmp_path, "--nproc", "2", "--start", start, *NAMED, "facts.py", *NASTY), 2)
    assert not pwn.exists()


def test_of_a_module(tmp_path: Path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "__main__.py").write_text("import runpy; runpy.run_path('facts.py')\n")
    (facts,) = facts_here(tmp_path, "--nproc", "1", "-m", "pkg", *NASTY)
    assert facts["argv"] == NASTY


@pytest.mark.lab
@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_on_hosts(lab, lab_path, transport):
    names = lab.up(2)
    quoted = "'$(touch /tmp/pwn) `x` \"q\" ; ü\t\\'"
    hosts = f"{names[0]} slots=1 env.OWN={quoted}\n{names[1]} slots=2\n"
    sent = {"HF_ODD": "a'b\"c $(touch /tmp/pwn)\n;\\", "NCCL_EMPTY": ""}
    words = ["--transport", transport, "--env", "EMPTY", *NAMED, "facts.py", *NASTY]
    facts = facts_in_lab(lab, lab_path, hosts, *words, env={**sent, "EMPTY": ""})
    check(facts, 3)
    for told in facts:
        assert {name: told["env"][name] for name in (*sent, "EMPTY")} == {**sent, "EMPTY": ""}
    assert facts[0]["env"]["OWN"] == quoted[1:-1]
    assert "OWN" not in facts[1]["env"]
    for host in (1, 2):
        assert lab.run(host, ["ls", "/tmp/pwn"]).returncode != 0


@pytest.mark.parametrize("start", ["spawn", "fork"])
def test_local_rank_stands_behind_the_arguments(tmp_path: Path, start):
    facts = facts_here(tmp_path, "--nproc", "2", "--start", start, "--local-rank-arg", "facts.py", "--x", "")
    assert [told["argv"] for told in facts] == [["--x", "", "--local_rank=0"], ["--x", "", "--local_rank=1"]]
