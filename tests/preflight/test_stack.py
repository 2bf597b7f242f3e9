"""The table of stacks: every torch finds its row, every row is whole, and versions are compared as pip does."""

from __future__ import annotations

import pytest
from packaging.version import InvalidVersion, Version

from launcher.preflight.stack import Stack, choose_stack, is_accepted, is_older, is_pep440, read_stacks
from launcher.preflight.version import read_numbers


@pytest.mark.parametrize(
    ("torch", "python", "transformers"),
    [
        ("1.13.1+git55d300e.abi0.dtk2304", (3, 10), "4.47.1"),
        ("2.0.1", (3, 10), "4.51.3"),
        ("2.1.0a0+git793d2b5.abi0.dtk2310", (3, 10), "4.51.3"),
        ("2.1.0+das1.0+git00661e0.abi0.dtk2404", (3, 10), "4.55.4"),
        ("2.3.0+das.opt2.dtk24043", (3, 10), "4.57.6"),
        ("2.4.1+das.opt2.dtk2504", (3, 10), "5.13.1"),
        ("2.5.1+das.opt1.dtk25042", (3, 11), "5.18.0"),
        ("2.7.1+das.opt1.dtk25042", (3, 10), "5.20.2"),
        ("2.10.0+das.opt1.dtk2604.20260325.g6b060a", (3, 10), "5.20.2"),
        ("2.11.0+das.opt1.dtk2610.2609201632.gf74cd7", (3, 12), "5.24.0"),
    ],
)
def test_the_stack_of_a_torch(torch: str, python: tuple[int, int], transformers: str) -> None:
    stack = choose_stack(torch, python)
    assert stack is not None
    assert stack.packages["transformers"] == transformers


@pytest.mark.parametrize(("torch", "python"), [("1.10.2", (3, 10)), ("1.13.0a0", (3, 10)), ("2.7.1", (3, 9))])
def test_no_stack(torch: str, python: tuple[int, int]) -> None:
    assert choose_stack(torch, python) is None


def test_rows_follow_each_other_without_a_gap() -> None:
    stacks = [stack for stack in read_stacks() if stack.python_from == "3.10"]
    assert [stack.torch_below for stack in stacks[1:]] == [stack.torch_from for stack in stacks[:-1]]
    assert stacks[0].torch_below is None
    assert len(read_stacks()) == 8


@pytest.mark.parametrize("stack", read_stacks(), ids=lambda stack: f"{stack.torch_from}-{stack.python_from}")
def test_each_row_is_whole_and_above_what_the_package_asks_for(stack: Stack) -> None:
    least = {
        "transformers": "4.44",
        "peft": "0.12",
        "accelerate": "0.33",
        "datasets": "2.20",
        "safetensors": "0.4.3",
    }
    assert set(least) <= set(stack.packages)
    assert all(read_numbers(stack.packages[name]) >= read_numbers(bound) for name, bound in least.items())
    assert "torch" not in {*stack.packages, *stack.beside}
    for name, pin in stack.beside.items():
        assert is_pep440(pin.version), name
        assert is_accepted(pin.version, pin.accepts), name
        assert not pin.wanted_by or pin.wanted_by in stack.beside, name


@pytest.mark.parametrize(
    ("version", "release", "older"),
    [
        ("2.1.0", "2.1", False),
        ("2.1.0a0+git793d2b5", "2.1", True),
        ("2.1.0.dev20230901", "2.1", True),
        ("2.1.1a0", "2.1", False),
        ("2.10.0", "2.9", False),
        ("2.9.0+das.opt1.dtk2604", "2.10", True),
        ("2.5.1+das.opt1.rc1.dtk2604", "2.5.1", False),
    ],
)
def test_is_older(version: str, release: str, older: bool) -> None:
    assert is_older(version, release) is older


@pytest.mark.parametrize(
    ("version", "reads"),
    [
        ("2.13.0", True),
        ("2.13.0+cpu", True),
        ("2.1.0a0+git793d2b5.abi0.dtk2310", True),
        ("2.10.0+das.opt1.dtk2604.20260325.g6b060a", True),
        ("2026.10.19.post1", True),
        ("0.1.6.post2+das.opt1.dtk25042", True),
        ("2.1.0+das1.0+git00661e0.abi0.dtk2404", False),
        ("0.6.0+das1.1git9442d31.abi1..dtk2404", False),
        ("unknown", False),
    ],
)
def test_is_pep440(version: str, reads: bool) -> None:
    assert is_pep440(version) is reads
    try:
        Version(version)
        agrees = True
    except InvalidVersion:
        agrees = False
    assert agrees is reads
