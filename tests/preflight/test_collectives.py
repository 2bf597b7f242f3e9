"""``check --comm``: who did not come is named, from made-up facts and on hosts where something is really broken."""

import json
import re

import pytest

from launcher.preflight.rules_collectives import judge_collective

RANKS = {0: "a", 1: "a", 2: "b", 3: "b"}


def facts_of(stages, **failed):
    facts = [{"imported": "2.5.1"}]
    for rank, stage in stages.items():
        facts += [{"rank": {"rank": rank, "stage": each}} for each in stage.split()]
    facts += [{"rank": {"rank": int(name[1:]), "failed": text}} for name, text in failed.items()]
    return facts


ALL = "start here reach group reduced done"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (facts_of(dict.fromkeys(RANKS, ALL)), []),
        (facts_of({0: "start here", 1: "start here", 2: "start", 3: "start here"}, r0="DistStoreError: wait timeout after 5 s"),
         [("COLLECTIVE_HUNG", ("b",), "rank 2 on b: no answer in 5 s; it never came to the meeting point")]),
        (facts_of(dict.fromkeys(RANKS, "start here reach group")),
         [("COLLECTIVE_HUNG", ("a", "b"), "ranks 0-3: no answer in 5 s")]),
        (facts_of({**dict.fromkeys(RANKS, "start here reach"), 3: "start here reach group"},
                  r1="RuntimeError: Unable to find address for: eth9", r0="RuntimeError: Timed out waiting 5000ms"),
         [("COLLECTIVE_FAILED", ("a",), "rank 1 on a: RuntimeError: Unable to find address for: eth9")]),
        ([*facts_of(dict.fromkeys(RANKS, "start here")), {"rank": {"rank": 0, "unreached": [[2, "10.0.0.2", "timed out"]]}}],
         [("COLLECTIVE_FAILED", ("a", "b"), "a does not reach b at 10.0.0.2: timed out")]),
        ([], [("COLLECTIVE_FAILED", ("a", "b"), "a: killed by signal 9")]),
    ],
)  # fmt: skip
def test_the_finding_that_explains_best(facts, expected):
    found = judge_collective(facts, RANKS, 5.0, {"a": "killed by signal 9", "b": ""})
    assert [(finding.code, finding.hosts) for finding in found] == [
        (code, hosts) for code, hosts, _ in expected
    ]
    for finding, (_, _, piece) in zip(found, expected, strict=True):
        assert piece in finding.message


@pytest.fixture
def check(lab, lab_path):
    """``check --comm`` over two hosts with two ranks each: exit code, findings, bandwidths."""

    def run(second="", limit="4", slots=(2, 2), words=()):
        names = lab.up(len(slots))
        lines = [
            f"{name} slots={count} {second if number == 1 else ''}"
            for number, (name, count) in enumerate(zip(names, slots, strict=True))
        ]
        (lab_path / "hosts").write_text("\n".join(lines) + "\n")
        words = ["--json", "--no-torch-check", "--comm", "--comm-limit", limit, "--hosts", "hosts", *words]
        done = lab.launch(["check", *words], cwd=lab_path, timeout=200)
        assert done.stdout, done.stderr
        run.told = told = json.loads(done.stdout)
        found = [
            (row["code"], row["hosts"], row["message"]) for row in told["findings"] if row["level"] == "error"
        ]
        for host in range(1, len(slots) + 1):
            lab.wait_gone(host, within_s=6)
        return done.returncode, found, told.get("bandwidths", [])

    return run


@pytest.mark.lab
@pytest.mark.train
def test_a_healthy_pair_reduces_and_is_measured(check):
    code, found, bandwidths = check(limit="20")
    assert (code, found) == (0, [])
    assert [row["bytes"] for row in bandwidths] == [1 << power for power in range(10, 23, 2)]
    assert all(row["bus_gb_s"] > 0 and row["backend"] == "gloo" for row in bandwidths)
    assert list(check.told["node_bandwidths"]) == ["node001", "node002"]
    assert check.told["pair_bandwidths"] == []


@pytest.mark.lab
@pytest.mark.train
def test_a_wrong_interface_is_named(check, lab):
    code, found, _ = check("env.GLOO_SOCKET_IFNAME=eth9")
    assert code == 3
    assert {name for name, _, _ in found} == {"INTERFACE_MISSING", "COLLECTIVE_FAILED"}
    assert all(hosts == [lab.name(2)] for _, hosts, _ in found), found
    assert any("eth9" in message for name, _, message in found if name == "COLLECTIVE_FAILED")


@pytest.mark.lab
@pytest.mark.train
def test_a_rank_that_is_stopped_is_named_within_the_limit(check, lab, lab_path):
    (lab_path / "sitecustomize.py").write_text(
        "import os, signal, socket\n"
        "real = socket.create_connection\n"
        "socket.create_connection = lambda *words, **more: os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    code, found, _ = check(f"env.PYTHONPATH={lab_path}")
    assert code == 3
    assert [(name, hosts) for name, hosts, _ in found] == [("COLLECTIVE_HUNG", [lab.name(2)])]
    assert found[0][2] == f"rank 2 on {lab.name(2)}: no answer in 4 s; it was trying to reach the other nodes"


@pytest.mark.lab
@pytest.mark.train
def test_a_pair_that_does_not_reach_each_other_is_named(check, lab):
    lab.up(3)
    route = f"{lab.address(3)}/32"
    lab.run(2, ["ip", "route", "add", "unreachable", route], check=True)
    try:
        code, found, _ = check(slots=(1, 1, 1))
    finally:
        lab.run(2, ["ip", "route", "del", "unreachable", route], check=True)
    assert code == 3
    pair = [lab.name(2), lab.name(3)]
    assert {name for name, _, _ in found} == {"COLLECTIVE_FAILED"}
    assert all(sorted(hosts) == pair for _, hosts, _ in found)
    assert any(
        f"{pair[0]} does not reach {pair[1]} at {lab.address(3)}" in message for _, _, message in found
    )


@pytest.mark.lab
@pytest.mark.train
def test_ports_that_a_firewall_drops_are_named(check, lab):
    # a rendezvous on a low port gets through, connections between ports of ranks do not
    lab.up(2)
    rule = ["ipproto", "tcp", "sport", "32768-60999", "dport", "32768-60999", "blackhole"]
    lab.run(2, ["ip", "rule", "add", *rule], check=True)
    try:
        code, found, _ = check(slots=(1, 1), words=["--master-port", "20001"])
    finally:
        lab.run(2, ["ip", "rule", "del", *rule], check=True)
    assert code == 3
    assert {name for name, _, _ in found} == {"COLLECTIVE_FAILED"}
    pair = [lab.name(1), lab.name(2)]
    assert all(sorted(hosts) == pair for _, hosts, _ in found), found
    assert any(re.search(r"does not reach node00[12] at .*: timed out", message) for _, _, message in found)


@pytest.mark.lab
@pytest.mark.train
def test_a_slow_node_is_named_by_its_pairs(check, lab):
    lab.up(4)
    limit = [
        "tc",
        "qdisc",
        "add",
        "dev",
        "eth0",
        "root",
        "tbf",
        "rate",
        "60mbit",
        "burst",
        "64kbit",
        "latency",
        "400ms",
    ]
    lab.run(3, limit, check=True)
    try:
        code, found, _ = check(slots=(1, 1, 1, 1), limit="20")
    finally:
        lab.run(3, ["tc", "qdisc", "del", "dev", "eth0", "root"], check=True)
    assert (code, found) == (0, [])
    slow = [row for row in check.told["findings"] if row["code"] == "NODE_SLOW"]
    assert [row["hosts"] for row in slow] == [[lab.name(3)]], check.told["pair_bandwidths"]
    assert "over eth0 (" in slow[0]["message"]
    assert len(check.told["pair_bandwidths"]) == 4
