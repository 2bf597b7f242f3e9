"""Where ranks meet: an address that all hosts reach, never a bridge that only looks like one; NICs that are really there."""

from __future__ import annotations

import ipaddress
import json
from pathlib import Path

import pytest

from tests.whole_path.facts import facts_in_lab, write_script

pytestmark = pytest.mark.lab


@pytest.fixture
def names(lab) -> list[str]:
    """Two hosts with a docker0 of the same address each, and a second network on their cable."""
    names = lab.up(2)
    for host in (1, 2):
        lines = [
            "ip link add docker0 type bridge", "ip addr add 172.17.0.1/16 dev docker0", "ip link set docker0 up",
            f"ip addr add 10.99.0.{host}/24 dev eth0",
        ]  # fmt: skip
        lab.run(host, ["sh", "-ec", "\n".join(lines)], check=True)
    yield names
    for host in (1, 2):
        lab.run(host, ["sh", "-c", f"ip link del docker0; ip addr del 10.99.0.{host}/24 dev eth0"])


def two(names) -> str:
    return "".join(f"{name} slots=1\n" for name in names)


def refused(lab, folder: Path, hosts: str, *words) -> str:
    write_script(folder)
    (folder / "hosts").write_text(hosts)
    done = lab.launch(["--hosts", "hosts", *words, "facts.py"], cwd=folder, timeout=60)
    assert done.returncode == 3, done.stdout + done.stderr
    return done.stderr


def test_the_network_by_which_hosts_really_reach_each_other(lab, lab_path, names):
    facts = facts_in_lab(lab, lab_path, two(names), "facts.py")
    assert {told["env"]["MASTER_ADDR"] for told in facts} == {lab.address(1)}
    assert {told["env"]["GLOO_SOCKET_IFNAME"] for told in facts} == {"eth0"}
    ipaddress.ip_address(facts[0]["env"]["MASTER_ADDR"])


def test_a_named_address_wins(lab, lab_path, names):
    facts = facts_in_lab(
        lab, lab_path, two(names), "--master-addr", "10.99.0.1", "--master-port", "29511", "facts.py"
    )
    assert {(told["env"]["MASTER_ADDR"], told["env"]["MASTER_PORT"]) for told in facts} == {
        ("10.99.0.1", "29511")
    }
    hosts = f"{names[0]} slots=1 addr=10.99.0.1\n{names[1]} slots=1\n"
    facts = facts_in_lab(lab, lab_path, hosts, "--run-dir", "run2", "facts.py")
    assert {told["env"]["MASTER_ADDR"] for told in facts} == {"10.99.0.1"}


def test_a_named_address_that_is_not_reached_is_refused(lab, lab_path, names):
    said = refused(lab, lab_path, two(names), "--master-addr", "172.17.0.1")
    assert f"{names[1]} cannot reach {names[0]}: 172.17.0.1" in said


def test_a_host_known_to_ssh_config_alone(lab, lab_path, names):
    config = lab.ssh_folder(1) / "config"
    config.write_text(f"Host boss\n  HostName {lab.address(1)}\nHost helper\n  HostName {lab.address(2)}\n")
    try:
        facts = facts_in_lab(lab, lab_path, "boss slots=1\nhelper slots=1\n", "facts.py")
    finally:
        config.unlink()
    assert {told["env"]["MASTER_ADDR"] for told in facts} == {lab.address(1)}


def test_a_nic_that_a_host_lacks_is_named(lab, lab_path, names):
    hosts = f"{names[0]} slots=1 env.NCCL_SOCKET_IFNAME=lo\n{names[1]} slots=1 env.NCCL_SOCKET_IFNAME=eth9\n"
    said = refused(lab, lab_path, hosts)
    assert f"{names[1]} has no interface eth9 (NCCL_SOCKET_IFNAME)" in said
    assert "hosts:2" in said


def test_dry_run_of_nodes_is_the_plan_that_is_run(lab, lab_path, names):
    write_script(lab_path)
    (lab_path / "hosts").write_text(f"{names[0]} slots=1\n{names[1]} slots=2\n")
    words = ["--hosts", "hosts", "--run-dir", "run", "--env", "HF_TOKEN=x1", "--bind", "numa"]
    dry = lab.launch([*words, "--dry-run=nodes", "facts.py", "a b", ""], cwd=lab_path)
    assert dry.returncode == 0, dry.stderr
    assert not (lab_path / "run").exists()
    ran = lab.launch([*words, "facts.py", "a b", ""], cwd=lab_path)
    assert ran.returncode == 0, ran.stderr
    planned, saved = dry.stdout, (lab_path / "run" / "plan.json").read_text()
    ports = [str(json.loads(text)["master_port"]) for text in (planned, saved)]
    assert planned.replace(ports[0], "PORT") == saved.replace(ports[1], "PORT")
    assert "x1" not in saved
