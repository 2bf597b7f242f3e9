"""Golden plans: what --dry-run prints, and what is decided once nodes have told of themselves. One file a case.

A change of a plan is a change of what every run does: accept it with ACCEPT_GOLDEN=1 after reading the difference.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.base.env import plan_envs
from launcher.commands.run import run
from launcher.hosts.hostfile import parse_hostfile
from launcher.launch.order import LaunchPlan, Meeting, RunSpec
from launcher.launch.plan import make_plan
from launcher.node.numa import read_topology
from launcher.preflight.report import NodeReport
from tests.golden import check_golden
from tests.node.sysfs import HOSTS, add_adapters, add_kfd_cards, add_nodes

GOLDEN = Path(__file__).parent / "golden"
#: bytes that a shell line, a split or a print would spoil; the last one is no text at all
NASTY = [
    "--x=a b", '{"a": [1, "b c"]}', "a;touch /tmp/pwn", "$HOME", "$(id)", "`id`", "it's", 'say "hi"', "", "*", "two\nlines",
    "中文", "-", "--", "\\", "tab\there", "\udcff\udcfe",
]  # fmt: skip


# ---- before a node was contacted


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in list(os.environ):
        if name != "PYTEST_CURRENT_TEST":
            monkeypatch.delenv(name)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    return tmp_path


def dry_run(folder: Path, hosts: str, *words: str) -> str:
    (folder / "hosts").write_text(hosts)
    before = ["--hosts", "hosts", "--dry-run", "--run-dir", "/runs/golden", "--workdir", "/project"]
    result = CliRunner().invoke(run, [*before, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes.decode("utf-8", "surrogateescape")


def check_dry_run(name: str, *args) -> None:
    check_golden(GOLDEN / f"{name}.json", dry_run(*args))


def test_one_host_of_eight(folder: Path):
    check_dry_run("1x8", folder, "node01 slots=8\n", "train.py")


def test_two_hosts_of_eight(folder: Path):
    check_dry_run("2x8", folder, "node[01-02] slots=8\n", "train.py", "--lr", "1e-4")


def test_unequal_slots(folder: Path):
    check_dry_run("unequal", folder, "node01 slots=1\nnode02 slots=3\n", "-m", "pkg.train")


def test_slots_that_only_the_nodes_know(folder: Path):
    text = dry_run(folder, "node01\nnode02 slots=2\nnode03\n", "train.py")
    check_golden(GOLDEN / "unknown_slots.json", text)
    plan = json.loads(text)
    assert plan["world_size"] == "<from nodes: cards>"
    assert [node["num_ranks"] for node in plan["nodes"]] == [
        "<from node01: cards>",
        2,
        "<from node03: cards>",
    ]
    assert plan["nodes"][0]["argv"][0] == "<from node01: python>"


def test_cards_by_number(folder: Path):
    check_dry_run("devices", folder, "node01 slots=2 devices=2,3\nnode02 devices=7\n", "train.py")


def test_nasty_arguments_and_variables(folder: Path):
    words = [word for number, value in enumerate(NASTY) for word in ("--env", f"NASTY_{number}={value}")]
    text = dry_run(folder, "node01 slots=1 env.H='a \"b\" $(c) `d`;\\ ü'\n", *words, "train.py", *NASTY)
    check_golden(GOLDEN / "nasty.json", text)
    node = json.loads(text)["nodes"][0]
    assert node["argv"][3:] == NASTY
    assert [op["value"] for op in node["named"] if op["name"].startswith("NASTY_")] == NASTY


def test_secrets_are_masked(folder: Path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_1secret")
    monkeypatch.setenv("WANDB_API_KEY", "2secret")
    (folder / "job.env").write_text("MY_PASSWORD='3secret'\n")
    text = dry_run(
        folder,
        "node01 slots=1 env.DB_SECRET=4secret env.http_proxy=http://bob:5secret@proxy:3128\n",
        "--env", "WANDB_API_KEY", "--env-file", "job.env", "--env", "S3_ACCESS_KEY=6secret",
        "train.py", "--hf_token", "7secret", "--api-key=8secret", "key=9secret", "--url", "https://u:10secret@h/x",
        "--max_tokens", "4096", "--tokens=128", "--key-size", "-3",
    )  # fmt: skip
    check_golden(GOLDEN / "secrets.json", text)
    assert "secret" not in text.replace("DB_SECRET", "")
    assert json.loads(text)["target"][-5:] == ["--max_tokens", "4096", "--tokens=128", "--key-size", "-3"]


def test_deepspeed_sync_and_local_rank(folder: Path):
    (folder / "ds.json").write_text('{"zero_optimization": {"stage": 3}}')
    words = ["--deepspeed", "ds.json", "--local-rank-arg", "--sync", "/home/alice/code", "--bind", "numa"]
    check_dry_run("deepspeed", folder, "node[01-02] slots=1\n", *words, "train.py")


def test_places_that_the_user_names(folder: Path):
    hosts = "alice@node01:2222 slots=1 python=/opt/py/bin/python setup=a.sh addr=10.0.0.1 env.P+=/x env.Q-\nnode02 slots=1\n"
    words = ["--setup", "/opt/dtk/env.sh", "--python", "/usr/bin/python3.11", "--master-addr", "10.1.0.1"]
    check_dry_run("places", folder, hosts, *words, "--master-port", "29500", "--start", "fork", "train.py")


# ---- with what the nodes told


def plan_for(hosts: str, reports: list[NodeReport], meeting: Meeting, **spec) -> LaunchPlan:
    defaults = {
        "name": "golden", "kind": "script", "target": "train.py", "arguments": ("--lr", "1e-4"), "workdir": "/project",
        "run_dir": "/runs/golden",
    }  # fmt: skip
    listed = parse_hostfile(hosts, "hosts")
    return make_plan(
        RunSpec(**{**defaults, **spec}), listed, plan_envs({}, {}, [], [], listed), reports, meeting
    )


def dcu_report(host: str, **more) -> NodeReport:
    facts = {"python": "/opt/py/bin/python3", "card_kind": "dcu", "card_count": 8, "cpus": 128}
    return NodeReport(host, **{**facts, **more})


def check_plan(name: str, plan: LaunchPlan) -> None:
    check_golden(GOLDEN / f"{name}.json", plan.to_json().decode())


def test_dcu_nodes_whose_cards_are_counted():
    meeting = Meeting("10.0.0.1", 29500, ("ib0", "ib1"))
    plan = plan_for("node01\nnode02\n", [dcu_report("node01"), dcu_report("node02")], meeting)
    assert plan.world_size == 16
    assert [order.ranks[0].rank for order in plan.nodes] == [0, 8]
    check_plan("reported_2x8", plan)


def test_recipe_on_nodes_without_cards_is_forked():
    reports = [
        NodeReport(name, python="/usr/bin/python3", card_kind="cpu", card_count=0, cpus=2) for name in "ab"
    ]
    recipe = {"config": {}, "config_hash": "0"}
    plan = plan_for(
        "a slots=1\nb slots=3\n", reports, Meeting("10.0.0.1", 4242, ("eth0", "eth1")), kind="recipe",
        target="lora.yaml", arguments=(), recipe=recipe,
    )  # fmt: skip
    check_plan("reported_recipe", plan)


@pytest.mark.parametrize(("kind", "name"), [("dcu", "devices_dcu"), ("cuda", "devices_cuda")])
def test_cards_by_number_on_a_known_kind(kind, name):
    report = dcu_report("node01", card_kind=kind)
    check_plan(
        f"reported_{name}", plan_for("node01 devices=2,3\n", [report], Meeting("127.0.0.1", 29500, ("",)))
    )


def test_ranks_bound_to_the_nodes_of_their_cards(tmp_path: Path):
    add_nodes(tmp_path, 8)
    add_kfd_cards(tmp_path, HOSTS["bw1000"])
    add_adapters(tmp_path, {f"shca_{number}": number for number in range(8)})
    report = dcu_report("node01", topology=read_topology(str(tmp_path), set(range(1024))))
    plan = plan_for("node01\n", [report], Meeting("127.0.0.1", 29500, ("",)), bind="numa")
    assert [rank.binding["node"] for rank in plan.nodes[0].ranks] == list(HOSTS["bw1000"])
    check_plan("reported_numa", plan)


def test_failure_says_how_to_accept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("tests.golden.ACCEPTED", False)
    with pytest.raises(AssertionError) as caught:
        check_golden(tmp_path / "x.json", "new\n")
    assert "+new" in str(caught.value)
    assert "ACCEPT_GOLDEN=1 pytest tests/launch/test_plan.py::test_failure_says_how_to_accept" in str(
        caught.value
    )


def test_every_golden_file_is_used():
    source = Path(__file__).read_text()
    kept = {path.stem for path in GOLDEN.iterdir()}
    assert len(kept) == 14
    assert {name for name in kept if name.removeprefix("reported_") not in source} == set()
