"""``dcu-launch check`` on this machine: text, JSON by its schema, exit codes; findings of operators and meeting."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.commands.check import to_json
from launcher.preflight.comparison import FIELDS, compare
from launcher.preflight.finding import make_finding
from launcher.preflight.report import read_report
from launcher.preflight.rules_operators import judge_operators
from launcher.report.check_table import fold_messages, group_nodes, show_check
from launcher.report.operator_table import show_bandwidths, show_operators

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "launcher" / "preflight" / "data" / "check.schema.json").read_text())
HEALTHY = json.loads((ROOT / "tests" / "cases" / "healthy.json").read_text())
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "number": (int, float),
    "null": type(None),
}


def hold(value, schema, where="$"):
    """Hold a value to the part of JSON Schema that ours uses."""
    if "enum" in schema:
        assert value in schema["enum"], where
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert any(isinstance(value, TYPES[name]) for name in names), f"{where}: {value!r} is no {names}"
    if isinstance(value, dict):
        assert set(schema.get("required", ())) <= set(value), where
        more = schema.get("additionalProperties", True)
        for key, held in value.items():
            inner = schema.get("properties", {}).get(key, more)
            assert inner is not False, f"{where}.{key} is not in the schema"
            hold(held, inner if isinstance(inner, dict) else {}, f"{where}.{key}")
    if isinstance(value, list):
        for number, held in enumerate(value):
            hold(held, schema.get("items", {}), f"{where}[{number}]")


def run_check(*words, cwd):
    return subprocess.run(
        [sys.executable, "-m", "launcher.cli", "check", "--no-torch-check", *words],
        capture_output=True, text=True, cwd=cwd, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(cwd)},
    )  # fmt: skip


def test_this_machine(tmp_path):
    done = run_check("--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    hold(told, SCHEMA)
    assert told["hosts"] == ["localhost"]
    assert list(told["meeting"]["interfaces"]) == ["localhost"]
    assert {row["field"]: row["state"] for row in told["comparisons"]}["python"] == "same"
    done = run_check(cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.endswith("all is well\n")
    assert list(tmp_path.glob("runs*")) == []


def test_hosts_that_do_not_answer_hide_nothing_of_the_others(tmp_path):
    (tmp_path / "hosts").write_text("127.0.0.2:1 slots=1\nlocalhost slots=1\n")
    words = ["--hosts", "hosts", "--connect-timeout", "2"]
    done = run_check(*words, "--json", cwd=tmp_path)
    assert done.returncode == 4
    told = json.loads(done.stdout)
    hold(told, SCHEMA)
    assert (told["exit"], told["hosts"], told["unreachable"]["hosts"]) == (4, ["localhost"], ["127.0.0.2"])
    assert {row["field"]: row["state"] for row in told["comparisons"]}["python"] == "same"
    done = run_check(*words, cwd=tmp_path)
    assert done.returncode == 4
    assert re.search(r"^Python +\d", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("not checked, no answer: 127.0.0.2\n")
    assert "dcu-launch: error: 127.0.0.2" in done.stderr
    (tmp_path / "hosts").write_text("127.0.0.2:1 slots=1\n")
    done = run_check(*words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (4, "")


def test_a_target_is_checked_too(tmp_path):
    (tmp_path / "s.py").write_text("m = load(device_map='auto')\n")
    done = run_check("--nproc", "2", "s.py", cwd=tmp_path)
    assert done.returncode == 3
    assert "error DEVICE_MAP_AUTO" in done.stdout
    done = run_check("--nproc", "2", "--allow", "DEVICE_MAP_AUTO", "s.py", cwd=tmp_path)
    assert done.returncode == 0
    assert "error DEVICE_MAP_AUTO (allowed)" in done.stdout


def test_a_table_of_the_site_that_is_wrong_is_wrong_use(tmp_path):
    (tmp_path / "site.json").write_text('{"dtks": {}}')
    done = run_check("--compat", "site.json", cwd=tmp_path)
    assert done.returncode == 2
    assert "dtks" in done.stderr


def reports_of(count, change):
    reports = []
    for number in range(count):
        message = json.loads(json.dumps(HEALTHY))
        change(number, message)
        reports.append(read_report(f"node{number + 1:02d}", message))
    return reports


def test_json_of_many_nodes_holds_to_the_schema():
    reports = reports_of(3, lambda n, message: message["driver"].update(version=None if n == 1 else "6.3.16"))
    hosts = [report.host for report in reports]
    comparisons = [compare(field, reports) for field in FIELDS]
    operators = [{"rows": [{"name": "matmul", "device": "cuda:0", "dtype": "bf16", "state": "wrong", "detail": "x",
                            "error": None, "seconds": 0.1}], "choices": [{}], "error": ""}] * 3  # fmt: skip
    findings = judge_operators(hosts, operators)
    told = to_json(hosts, comparisons, findings, frozenset({"OPERATOR_WRONG"}), 0)
    hold(told | {"operators": dict(zip(hosts, operators, strict=True))}, SCHEMA)
    assert [row["allowed"] for row in told["findings"]] == [True] * 3


def test_equal_nodes_stand_in_one_column():
    reports = reports_of(
        8, lambda n, message: message["dtk"].update(version="24.04.3" if n == 7 else "25.04.2")
    )
    comparisons = [compare(field, reports) for field in FIELDS]
    text = show_check(comparisons, [report.host for report in reports], [], frozenset())
    assert group_nodes(comparisons, 8) == [[0, 1, 2, 3, 4, 5, 6], [7]]
    assert text.splitlines()[0].split() == ["node[01-07]", "node08"]
    assert re.search(r"^DTK +25\.04\.2 +24\.04\.3 \*$", text, re.MULTILINE)
    painted = show_check(
        comparisons, [r.host for r in reports], [], frozenset(), lambda text, kind: f"<{kind}>{text}"
    )
    assert "<different>24.04.3 *" in painted


def test_many_kinds_of_nodes_stand_below_each_other():
    reports = reports_of(6, lambda n, message: message["system"].update(kernel=f"5.15.{n}"))
    text = show_check(
        [compare(field, reports) for field in FIELDS], [r.host for r in reports], [], frozenset()
    )
    assert "kernel         5.15.0  on node01\n               5.15.1 *  on node02\n" in text
    assert "DTK            25.04.2\n" in text


def test_equal_findings_are_told_once():
    findings = [make_finding("NUMPY_TOO_NEW", f"node{n}", f"node{n}: numpy 2.1") for n in (1, 2, 3)]
    assert fold_messages(findings) == ["node[1-3]: numpy 2.1"]
    text = show_check(
        [compare(FIELDS[0], reports_of(1, lambda n, m: None))], ["node1"], findings, frozenset()
    )
    assert text.count("cure:") == 1
    assert text.endswith("1 warning\n")


@pytest.mark.parametrize(
    ("state", "codes"),
    [("works", []), ("missing", []), ("wrong", ["OPERATOR_WRONG"]), ("failed", ["OPERATOR_CRASHED"]),
     ("crashed", ["OPERATOR_CRASHED"])],
)  # fmt: skip
def test_operators_become_findings_and_a_table(state, codes):
    rows = [
        {"name": "matmul", "device": f"cuda:{n}", "dtype": "bf16", "state": state, "detail": "why"}
        for n in (0, 1)
    ]
    choices = [{"device": f"cuda:{n}", "precision": "fp16", "precision_why": "bf16 is wrong", "attention": "sdpa",
                "attention_why": "a probe works"} for n in (0, 1)]  # fmt: skip
    held = [{"rows": rows, "choices": choices, "error": ""}] * 2
    assert [finding.code for finding in judge_operators(["a1", "a2"], held)] == codes * 4
    text = show_operators(["a1", "a2"], held)
    assert "operators on a[1-2] cuda:0,cuda:1\n" in text
    assert f"matmul  ?        ?        {state}\n" in text
    assert "recipes choose fp16 (bf16 is wrong) and sdpa attention (a probe works)" in text


def test_bandwidths_are_a_table_and_hold_to_the_schema():
    rows = [{"bytes": 1 << 20, "seconds": 0.001, "bus_gb_s": 1.5729, "backend": "nccl"}]
    assert show_bandwidths(rows).splitlines() == [
        "all-reduce over all ranks (nccl)",
        "      bytes     time us   bus GB/s",
        "    1048576      1000.0      1.573",
        "",
    ]
    assert show_bandwidths([]) == ""
    hold({**to_json([], [], [], frozenset(), 0), "bandwidths": rows, "probe_s": {"a": 0.01}}, SCHEMA)


def test_a_failed_collective_bears_the_lines_of_rccl_that_matter():
    from launcher.commands.collectives import LOG_LINES, add_log

    finding = make_finding("COLLECTIVE_FAILED", "w1", "rank 2 on w1: NCCL error: unhandled system error")
    lines = [f" NCCL WARN Error while creating shared memory segment {n} " for n in range(9)]
    told = add_log(finding, {"w1": lines, "w0": ["Using network IB"]}).message
    assert told.startswith(
        "rank 2 on w1: NCCL error: unhandled system error; RCCL says: NCCL WARN Error while"
    )
    assert told.count("NCCL WARN") == LOG_LINES
    assert "Using network" not in told
    assert add_log(finding, {"w0": ["x"]}) == finding
