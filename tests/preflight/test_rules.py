"""Every rule by its cases: reports in, findings out. A case changes a few facts of a healthy node.

``nodes``: host -> facts by dotted path (null takes a fact away, ``*`` all); ``hosts``: of the hostfile's lines;
``findings``: level, code, hosts, and a piece of the message, all of them and no other.
"""

import copy
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.base.config import Recipe, to_dict
from launcher.hosts.host import Host
from launcher.preflight.codes import CODES
from launcher.preflight.report import read_report
from launcher.preflight.rules import RULES, Wanted, find_faults

CASES = Path(__file__).parents[1] / "cases"
FOLDERS = sorted(path for path in CASES.iterdir() if path.is_dir() and path.name != "smi")
FILES = [path for folder in FOLDERS for path in sorted(folder.glob("*.json"))]
#: found by what a verb does itself, not by a rule over reports
OF_VERBS = {
    "MASTER_UNREACHABLE",
    "OPERATOR_WRONG",
    "OPERATOR_CRASHED",
    "COLLECTIVE_FAILED",
    "NODE_SLOW",
    "COLLECTIVE_HUNG",
}


def patch(message, changes):
    message = {} if "*" in changes else copy.deepcopy(message)
    for path, value in changes.items():
        if path == "*":
            continue
        *parents, last = path.split(".") if not path.startswith("/") else [path]
        place = message
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None and last in place and parents[-1:] in (["packages"], ["variables"]):
            del place[last]
        else:
            place[last] = value
    return message


def own_names(number):
    """What no two nodes share."""
    eth0 = {"name": "eth0", "address": f"10.0.0.{number + 1}"}
    return {"hostname": f"node{number}", "interfaces": [eth0, {"name": "lo", "address": "127.0.0.1"}]}


def run_case(case):
    base = json.loads((CASES / f"{case.get('base', 'healthy')}.json").read_text())
    lines = dict(case.get("hosts", {}))
    envs = lines.pop("env", [{}] * len(case["nodes"]))
    if "devices" in lines:
        lines["devices"] = tuple(lines["devices"])
    hosts = [
        Host(name, source=f"hosts:{n + 1}", env=envs[n], **lines) for n, name in enumerate(case["nodes"])
    ]
    reports = [
        read_report(name, patch(base, {**own_names(number), **changes}))
        for number, (name, changes) in enumerate(case["nodes"].items())
    ]
    wanted = {"recipe": False, "workdir": "/project", **case.get("wanted", {})}
    if "config" in wanted:
        config = to_dict(Recipe()) | {"model": {"path": "/models/m"}, "data": {"path": "demo"}}
        for key, value in wanted["config"].items():
            config[key] = {**config[key], **value} if isinstance(value, dict) else value
        wanted["config"] = config
    return find_faults(reports, Wanted(**wanted, hosts=hosts))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_case(path):
    case = json.loads(path.read_text())
    found = run_case(case)
    told = sorted((f.level, f.code, list(f.hosts)) for f in found)
    assert told == sorted((level, code, hosts) for level, code, hosts, _ in case["findings"]), found
    for level, code, hosts, piece in case["findings"]:
        assert any(
            (f.level, f.code, list(f.hosts)) == (level, code, hosts) and piece in f.message for f in found
        ), found
        assert all(f.cure for f in found)


def test_every_rule_has_cases_and_every_case_a_rule():
    assert {folder.name for folder in FOLDERS} == {rule.__name__ for rule in RULES} | {"find_differences"}


def test_every_code_is_found_by_some_case():
    told = {code for path in FILES for _, code, _, _ in json.loads(path.read_text())["findings"]}
    assert told == set(CODES) - OF_VERBS


@pytest.mark.parametrize("base", ["healthy", "healthy-cpu"])
@pytest.mark.parametrize("count", [1, 2, 64])
def test_healthy_nodes_have_no_finding(base, count):
    assert run_case({"base": base, "nodes": {f"n{number}": {} for number in range(count)}}) == []


def test_a_variable_that_also_names_plain_rocm_makes_no_dcu_node():
    rocm = {
        "dtk.root": "/opt/rocm",
        "dtk.named_by": "ROCM_PATH",
        "dtk.exists": True,
        "dtk.real": "/opt/rocm-6.4.0",
    }
    assert run_case({"base": "healthy-cpu", "nodes": {"n1": rocm}}) == []
    found = run_case({"base": "healthy-cpu", "nodes": {"n1": {**rocm, "dtk.real": "/opt/dtk-25.04"}}})
    assert "HYHAL_MISSING" in {finding.code for finding in found}


HEALTHY = json.loads((CASES / "healthy.json").read_text())


@settings(max_examples=60)
@given(st.sets(st.sampled_from(sorted(HEALTHY))))
def test_whatever_is_unknown_makes_no_error(left_out):
    known = {name: value for name, value in HEALTHY.items() if name not in left_out}
    other = {name: value for name, value in own_names(1).items() if name not in left_out}
    reports = [read_report("w0", HEALTHY), read_report("w1", {**known, **other})]
    hosts = [Host("w0"), Host("w1")]
    for finding in find_faults(reports, Wanted(False, "/project", hosts)):
        assert finding.level == "note", finding
