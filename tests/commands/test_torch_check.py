"""What ranks and processes beside them say of torch, judged: who is refused, what passes, what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.commands.torch_check import TorchCheck
from launcher.hosts.hostfile import parse_hostfile
from launcher.launch.order import RunSpec
from launcher.launch.run_folder import RunFolder
from launcher.preflight.report import read_report

CASES = Path(__file__).resolve().parents[1] / "cases"
HEALTHY = json.loads((CASES / "healthy.json").read_text())
FACTS = {
    "version": "2.5.1", "hip": "6.3.25422", "cuda": None, "available": True, "device_count": 8,
    "archs": ["gfx928", "gfx936"], "compiled_nccl": "2.22.3", "loaded_nccl": "2.22.3",
    "loaded_path": "/opt/dtk/lib/librccl.so.1", "device_names": ["BW"], "card_archs": ["gfx936:sramecc+:xnack-"],
}  # fmt: skip


@pytest.fixture
def make_check(tmp_path):
    """A check of two healthy nodes."""

    def make(*, recipe: bool, allowed: tuple[str, ...] = (), words: str = "") -> TorchCheck:
        hosts = parse_hostfile(f"w0 slots=2\nw1 slots=2 {words}\n", "hosts")
        spec = RunSpec(
            name="run", kind="recipe" if recipe else "script", target="x.py", arguments=(), workdir="/project",
            run_dir=str(tmp_path), recipe={"config": {}} if recipe else None,
        )  # fmt: skip
        request: Any = SimpleNamespace(spec=spec, hosts=hosts, options={"allowed": allowed, "compat": ()})
        while folders:
            folders.pop().close()
        folder = RunFolder(tmp_path, "run")
        folders.append(folder)
        check = TorchCheck(
            request,
            [read_report(host.name, {**HEALTHY, "hostname": host.name}) for host in hosts],
            [],
            folder,
        )
        check.say = said.append
        return check

    said: list[str] = []
    folders: list[RunFolder] = []
    make.said = said  # type: ignore[attr-defined]
    yield make
    for folder in folders:
        folder.close()


def say_all(check, **other: dict[str, Any]) -> None:
    """All four ranks are healthy but for some."""
    for rank in range(4):
        check.hear_rank(rank // 2, rank, {})
        facts = {**FACTS, "operation": {str(rank % 2): ""}}
        check.hear_rank(rank // 2, rank, {**facts, **other.get(f"r{rank}", {})})


def codes(check) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.code, finding.hosts) for finding in check.errors]


def kept(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "preflight.json").read_text())


def test_healthy_ranks_pass_and_what_they_said_is_kept(make_check, tmp_path):
    check = make_check(recipe=True)
    say_all(check)
    assert check.passes()
    assert (check.errors, make_check.said) == ([], [])
    told = kept(tmp_path)["torch"]
    assert list(told) == ["w0", "w1"]
    assert told["w1"]["loaded_path"] == "/opt/dtk/lib/librccl.so.1"
    assert told["w1"]["operations"] == {"0": "", "1": ""}


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        ({"operation": {"1": "wrong result"}}, "CARD_OPERATION_FAILED"),
        ({"archs": ["gfx906"]}, "ARCH_MISMATCH"),
        ({"device_count": 7}, "TORCH_DEVICE_COUNT_MISMATCH"),
        ({"available": False, "device_count": 0}, "TORCH_HCU_UNAVAILABLE"),
    ],
)
def test_a_node_whose_ranks_are_ill_refuses_the_run(make_check, tmp_path, facts, code):
    check = make_check(recipe=True)
    say_all(check, r2=facts, r3=facts)
    assert not check.passes()
    assert codes(check) == [(code, ("w1",))]
    assert [row["code"] for row in kept(tmp_path)["findings"]] == [code]


def test_an_import_that_fails_in_one_rank_speaks_for_its_node(make_check):
    check = make_check(recipe=True)
    check.hear_rank(0, 0, {**FACTS, "operation": {"0": ""}})
    check.hear_rank(1, 2, {**FACTS, "operation": {"0": ""}})
    check.hear_rank(1, 3, {})
    check.hear_rank(1, 3, {"error": "ImportError: libgalaxyhip.so.5: cannot open shared object file"})
    assert not check.passes()
    assert codes(check) == [("TORCH_NATIVE_DEPENDENCY_MISSING", ("w1",))]


@pytest.mark.parametrize(
    ("facts", "code", "piece"),
    [
        ([{}], "TORCH_IMPORT_FAILED", "import torch: killed by signal 4"),
        ([{}, {**FACTS, "trying": "1"}], "CARD_OPERATION_FAILED", "card 1: killed by signal 4"),
    ],
)
def test_a_rank_that_a_signal_ends_is_named_by_what_it_was_trying(make_check, facts, code, piece):
    check = make_check(recipe=True)
    check.hear_end(0, 0, "killed by signal 9")  # before it had come to torch: nothing is known of that
    check.hear_rank(0, 1, {})  # imports it still
    for fact in facts:
        check.hear_rank(1, 3, fact)
    check.hear_end(1, 3, "killed by signal 4")
    assert not check.passes()
    assert codes(check) == [(code, ("w1",))]
    assert piece in check.errors[0].message


def test_what_is_allowed_passes_and_is_said(make_check, tmp_path):
    check = make_check(recipe=True, allowed=("ARCH_MISMATCH",))
    say_all(check, r2={"archs": ["gfx906"]}, r3={"archs": ["gfx906"]})
    assert check.passes()
    assert make_check.said[0].startswith("allowed ARCH_MISMATCH: w1")
    assert check.passes()
    assert len(make_check.said) == 1
    assert [row["allowed"] for row in kept(tmp_path)["findings"]] == [True]


def test_another_rccl_in_memory_than_on_other_nodes(make_check):
    check = make_check(recipe=True)
    other = {"loaded_nccl": "2.19.3"}
    say_all(check, r2=other, r3=other)
    assert not check.passes()
    assert codes(check) == [("RCCL_DIFFERS", ("w1",))]
    assert make_check.said[0].startswith("warning RCCL_COMPILED_OTHER: w1")


def test_devices_of_the_hostfile_are_the_cards_that_torch_may_see(make_check):
    check = make_check(recipe=True, words="devices=2,3")
    say_all(check, r2={"device_count": 2}, r3={"device_count": 2})
    assert check.passes()


def look(*facts: dict[str, Any], error: str = "", is_cut: bool = False) -> dict[str, Any]:
    return {"kind": "looked", "facts": list(facts), "error": error, "is_cut": is_cut}


def test_beside_a_script_one_process_a_node_is_asked_for(make_check):
    assert make_check(recipe=True).questions(True, 60.0) == {}
    check = make_check(recipe=False, words="devices=2,3")
    assert check.questions(False, 9.9) == {}
    asked = check.questions(True, 1.0)
    assert check.questions(True, 2.0) == {}
    assert make_check(recipe=False).questions(False, 10.0).keys() == {0, 1}
    assert [(node, question["what"], question["arguments"]) for node, question in asked.items()] == [
        (0, "torch", ["gently"]), (1, "torch", ["gently"]),
    ]  # fmt: skip
    assert asked[1]["variables"] == {"HIP_VISIBLE_DEVICES": "2,3"}
    assert asked[1]["beside_ranks"]


def test_it_is_judged_when_all_have_answered_or_one_is_ill(make_check):
    check = make_check(recipe=False)
    check.questions(True, 1.0)
    healthy = look(FACTS, {"operation": {str(card): "" for card in range(8)}})
    assert not check.hear_look(0, healthy)
    assert check.hear_look(1, healthy)
    assert check.passes()
    check = make_check(recipe=False)
    check.questions(True, 1.0)
    assert check.hear_look(0, look({"error": "ImportError: no module"}))
    assert not check.passes()
    assert codes(check) == [("TORCH_IMPORT_FAILED", ("w0",))]


@pytest.mark.parametrize(
    "frame",
    [
        look(error="no answer within 120 s"),
        look(error="killed by signal 9: "),
        look(FACTS, {"trying": "0"}, error="no answer within 120 s"),
        look(FACTS, {"operation": {"0": "HIP out of memory. Tried to allocate 16 KiB"}}),
        look(error="killed by signal 9: ", is_cut=True),
    ],
)
def test_what_ranks_may_have_done_to_it_refuses_nothing(make_check, frame):
    check = make_check(recipe=False)
    check.questions(True, 1.0)
    check.hear_look(0, frame)
    assert check.passes()
    assert (check.errors, make_check.said) == ([], [])
