"""Every version text known from wheels, DTK and drivers is taken apart; nothing at all makes the parsers fail."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.preflight.version import (
    WheelVersion,
    compare_drivers,
    compare_numbers,
    expand_dtk,
    format_hip_version,
    format_library_version,
    parse_driver,
    parse_wheel,
    read_dtk,
    read_numbers,
    same_dtk_release,
    same_hip_family,
)

#: text -> fields that differ from None; base, flavor "dtk" and dtk are given in this order first
WHEELS = [
    ("1.13.1+git55d300e.abi0.dtk2304", "1.13.1", "23.04", {"git": "55d300e", "abi": 0}),
    ("1.13.1+git7d2dd01.abi0.dtk2310", "1.13.1", "23.10", {"git": "7d2dd01", "abi": 0}),
    ("0.14.1+gitf78f29f.abi0.dtk2310.torch1.13", "0.14.1", "23.10", {"git": "f78f29f", "abi": 0, "torch": "1.13"}),
    ("2.1.0a0+git793d2b5.abi0.dtk2310", "2.1.0a0", "23.10", {"git": "793d2b5", "abi": 0}),
    ("2.1.0+das1.0+git00661e0.abi0.dtk2404-cp310-cp310-manylinux2014_x86_64", "2.1.0", "24.04",
     {"das": "1.0", "git": "00661e0", "abi": 0, "python": "cp310"}),
    ("2.1.0+das1.0+git3841f975.abi0.dtk2404", "2.1.0", "24.04", {"das": "1.0", "git": "3841f975", "abi": 0}),
    ("0.12.3+das1.0+gita724046.abi0.dtk2404.torch2.1.0-cp310-cp310-manylinux2014_x86_64.whl", "0.12.3", "24.04",
     {"das": "1.0", "git": "a724046", "abi": 0, "torch": "2.1.0", "python": "cp310"}),
    ("0.3.3+git3380931.abi0.dtk2404.torch2.1", "0.3.3", "24.04", {"git": "3380931", "abi": 0, "torch": "2.1"}),
    ("2.1.0+das1.1.git3ac1bdd.abi1.dtk2404", "2.1.0", "24.04", {"das": "1.1", "git": "3ac1bdd", "abi": 1}),
    ("0.6.0+das1.1git9442d31.abi1.dtk2404", "0.6.0", "24.04", {"das": "1.1", "git": "9442d31", "abi": 1}),
    ("2.3.0+das.opt1.dtk24042-cp310-cp310-manylinux_2_28_x86_64", "2.3.0", "24.04.2",
     {"das": "", "opt": 1, "python": "cp310"}),
    ("0.18.1+das.opt1.dtk24042", "0.18.1", "24.04.2", {"das": "", "opt": 1}),
    ("2.1.0+das.opt1.dtk24042", "2.1.0", "24.04.2", {"das": "", "opt": 1}),
    ("0.1.1+das.dtk24042", "0.1.1", "24.04.2", {"das": ""}),
    ("0.0.25+das.opt1.dtk24042", "0.0.25", "24.04.2", {"das": "", "opt": 1}),
    ("2.13.1+das.opt1.dtk24042", "2.13.1", "24.04.2", {"das": "", "opt": 1}),
    ("2.1.0+das.opt2.dtk24043", "2.1.0", "24.04.3", {"das": "", "opt": 2}),
    ("1.6.0+das.opt1.dtk24043", "1.6.0", "24.04.3", {"das": "", "opt": 1}),
    ("2.3.0+das.opt2.dtk24043", "2.3.0", "24.04.3", {"das": "", "opt": 2}),
    ("0.16.0+das.opt1.dtk24043", "0.16.0", "24.04.3", {"das": "", "opt": 1}),
    ("2.6.1+das.opt2.dtk24043", "2.6.1", "24.04.3", {"das": "", "opt": 2}),
    ("0.14.2+das.opt2.dtk24043", "0.14.2", "24.04.3", {"das": "", "opt": 2}),
    ("2.1.0+das.opt1.dtk24043", "2.1.0", "24.04.3", {"das": "", "opt": 1}),
    ("0.42.0+das.opt1.dtk24043-py3-none-any", "0.42.0", "24.04.3", {"das": "", "opt": 1, "python": "py3"}),
    ("0.6.2+das.opt1.dtk24043", "0.6.2", "24.04.3", {"das": "", "opt": 1}),
    ("0.5.0+das.opt4.dtk24043", "0.5.0", "24.04.3", {"das": "", "opt": 4}),
    ("2.4.1+das.opt2.dtk2504-cp310-cp310-manylinux_2_28_x86_64", "2.4.1", "25.04",
     {"das": "", "opt": 2, "python": "cp310"}),
    ("0.19.1+das.opt2.dtk2504", "0.19.1", "25.04", {"das": "", "opt": 2}),
    ("0.14.2+das.opt2.dtk2504", "0.14.2", "25.04", {"das": "", "opt": 2}),
    ("2.6.1+das.opt4.dtk2504", "2.6.1", "25.04", {"das": "", "opt": 4}),
    ("3.0.0+das.opt4.dtk2504", "3.0.0", "25.04", {"das": "", "opt": 4}),
    ("1.9.0+das.opt2.dtk2504", "1.9.0", "25.04", {"das": "", "opt": 2}),
    ("1.4.0+das.opt1.dtk2504", "1.4.0", "25.04", {"das": "", "opt": 1}),
    ("0.6.2+das.opt3.dtk2504", "0.6.2", "25.04", {"das": "", "opt": 3}),
    ("0.2.1+das.dtk2504", "0.2.1", "25.04", {"das": ""}),
    ("2.0.0+das.dtk2504", "2.0.0", "25.04", {"das": ""}),
    ("0.4.34+das.opt1.dtk2504", "0.4.34", "25.04", {"das": "", "opt": 1}),
    ("2.4.1+das.opt1.dtk25041-cp311-cp311-manylinux_2_28_x86_64", "2.4.1", "25.04.1",
     {"das": "", "opt": 1, "python": "cp311"}),
    ("2.4.1+das.opt2.dtk25041", "2.4.1", "25.04.1", {"das": "", "opt": 2}),
    ("2.6.1+das.opt1.dtk25041", "2.6.1", "25.04.1", {"das": "", "opt": 1}),
    ("3.0.0+das.opt1.dtk25041", "3.0.0", "25.04.1", {"das": "", "opt": 1}),
    ("2.5.1+das.opt1.dtk25042", "2.5.1", "25.04.2", {"das": "", "opt": 1}),
    ("0.20.1+das.opt1.dtk25042", "0.20.1", "25.04.2", {"das": "", "opt": 1}),
    ("2.7.0+das.opt1.dtk25042", "2.7.0", "25.04.2", {"das": "", "opt": 1}),
    ("1.19.2+das.opt1.dtk25042", "1.19.2", "25.04.2", {"das": "", "opt": 1}),
    ("2.2.1+das.opt1.dtk25042", "2.2.1", "25.04.2", {"das": "", "opt": 1}),
    ("2.2.0+das.dtk25042", "2.2.0", "25.04.2", {"das": ""}),
    ("2.7.1+das.opt1.dtk25042-cp310-cp310-manylinux_2_28_x86_64", "2.7.1", "25.04.2",
     {"das": "", "opt": 1, "python": "cp310"}),
    ("0.1.6.post2+das.opt1.dtk25042", "0.1.6.post2", "25.04.2", {"das": "", "opt": 1}),
    ("2.7.1+das.opt1.dtk2604", "2.7.1", "26.04", {"das": "", "opt": 1}),
    ("2.9.0+das.opt1.dtk2604", "2.9.0", "26.04", {"das": "", "opt": 1}),
    ("2.10.0+das.opt1.dtk2604.20260325.g6b060a", "2.10.0", "26.04",
     {"das": "", "opt": 1, "timestamp": "20260325", "git": "6b060a"}),
    ("0.20.1+das.opt1.dtk2604.torch251", "0.20.1", "26.04", {"das": "", "opt": 1, "torch": "2.5.1"}),
    ("0.24.0+das.opt1.dtk2604", "0.24.0", "26.04", {"das": "", "opt": 1}),
    ("3.1.0+das.opt1.dtk2604.torch251", "3.1.0", "26.04", {"das": "", "opt": 1, "torch": "2.5.1"}),
    ("3.3.0+das.opt1.dtk2604.torch290", "3.3.0", "26.04", {"das": "", "opt": 1, "torch": "2.9.0"}),
    ("3.5.1+das.opt1.dtk2604.torch290", "3.5.1", "26.04", {"das": "", "opt": 1, "torch": "2.9.0"}),
    ("2.8.3+das.opt1.dtk2604.torch271", "2.8.3", "26.04", {"das": "", "opt": 1, "torch": "2.7.1"}),
    ("2.8.3+das.opt1.dtk2604.torch290.2607280958.gebb4be", "2.8.3", "26.04",
     {"das": "", "opt": 1, "torch": "2.9.0", "timestamp": "2607280958", "git": "ebb4be"}),
    ("0.0.33+das.opt1.dtk2604.torch251-py3-none-any", "0.0.33", "26.04",
     {"das": "", "opt": 1, "torch": "2.5.1", "python": "py3"}),
    ("0.11.0+das.opt1.rc2.dtk2604.20260128.g0bf89b0c", "0.11.0", "26.04",
     {"das": "", "opt": 1, "build": "rc2", "timestamp": "20260128", "git": "0bf89b0c"}),
    ("0.15.1+das.opt1.alpha.dtk2604", "0.15.1", "26.04", {"das": "", "opt": 1, "build": "alpha"}),
    ("0.18.1+das.dtk2604", "0.18.1", "26.04", {"das": ""}),
    ("0.5.12+das.opt1.dtk2604.torch2100.2606021957.gdad582.hcuopt1", "0.5.12", "26.04",
     {"das": "", "opt": 1, "torch": "2.10.0", "timestamp": "2606021957", "git": "dad582"}),
    ("1.2.0+das.opt1.dtk2604.torch290.2606032016.g3de4f9.aicc", "1.2.0", "26.04",
     {"das": "", "opt": 1, "torch": "2.9.0", "timestamp": "2606032016", "git": "3de4f9"}),
    ("2.11.0+das.opt1.dtk2610.2609201632.gf74cd7", "2.11.0", "26.10",
     {"das": "", "opt": 1, "timestamp": "2609201632", "git": "f74cd7"}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "base", "dtk", "rest"), WHEELS, ids=[row[0] for row in WHEELS])
def test_wheels_for_dcu(text, base, dtk, rest):
    assert parse_wheel(text) == WheelVersion(raw=text, base=base, dtk=dtk, flavor="dtk", **rest)


@pytest.mark.parametrize(
    ("text", "base", "flavor"),
    [
        ("2.3.0", "2.3.0", ""),
        ("2.4.0+rocm6.1", "2.4.0", "rocm"),
        ("2.4.0+cu121", "2.4.0", "cuda"),
        ("2.13.0+cpu", "2.13.0", "cpu"),
        ("2.1.0a0+gitdeadbee", "2.1.0a0", ""),
        ("", "", ""),
        ("unknown", "unknown", ""),
    ],
)
def test_wheels_of_others(text, base, flavor):
    version = parse_wheel(text)
    assert (version.base, version.flavor, version.dtk) == (base, flavor, None)


def test_base_versions_compare_as_numbers():
    assert parse_wheel("2.10.0+das.opt1.dtk2604").numbers > parse_wheel("2.3.0").numbers
    assert compare_numbers((2, 1), (2, 1, 0)) == 0


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("DTK-25.04", "25.04"), ("DTK-26.04-rc4\n", "26.04"), ("24.04.3", "24.04.3"), ("25.04.4\n", "25.04.4"),
        ("dtk24.04.1", "24.04.1"), ("", None), ("hello", None), ("5.7.1", None),
    ],
)  # fmt: skip
def test_dtk_files(text, version):
    assert read_dtk(text) == version


@pytest.mark.parametrize(("digits", "version"), [("2404", "24.04"), ("24043", "24.04.3"), ("2610", "26.10")])
def test_dtk_digits(digits, version):
    assert expand_dtk(digits) == version


def test_dtk_releases():
    assert same_dtk_release("25.04", "25.04.2")
    assert not same_dtk_release("25.04", "26.04")


DRIVERS = [
    ("6.3.8-V1.9.2", (6, 3, 8), (1, 9, 2), ""),
    ("6.3.13-V1.12.0a", (6, 3, 13), (1, 12, 0), "a"),
    ("6.3.16", (6, 3, 16), (), ""),
    ("6.3.28-V1.3.0b", (6, 3, 28), (1, 3, 0), "b"),
    ("6.3.31-V1.5.0a", (6, 3, 31), (1, 5, 0), "a"),
    ("6.3.31-V1.5.3.beta", (6, 3, 31), (1, 5, 3), ""),
    ("6.3.32-V1.6.0", (6, 3, 32), (1, 6, 0), ""),
    ("rock-6.3.30-V1.4.1a.run", (6, 3, 30), (1, 4, 1), "a"),
    ("rock-6.3.16-V1.1.0a", (6, 3, 16), (1, 1, 0), "a"),
    ("rock-6.3.6-V1.9.0c", (6, 3, 6), (1, 9, 0), "c"),
    ("rock-6.3.3-V1.8.0", (6, 3, 3), (1, 8, 0), ""),
    ("5.7.1-V1.7.0", (5, 7, 1), (1, 7, 0), ""),
    ("rock-5.7.1-6.2.26-V1.5.aio.run", (6, 2, 26), (1, 5), ""),
    ("rock-5.7.1-6.2.18-V1.1.2", (6, 2, 18), (1, 1, 2), ""),
    ("rock-5.7.1-6.2.13-V1.0.1a", (6, 2, 13), (1, 0, 1), "a"),
    ("rock-5.2.0-5.16.18-V01.9.2", (5, 16, 18), (1, 9, 2), ""),
    ("rock-4.5.2-5.11.39", (5, 11, 39), (), ""),
    ("rock-4.5.2-0-5.11.36-1-V01.3.2", (5, 11, 36), (1, 3, 2), ""),
]


@pytest.mark.parametrize(("text", "dotted", "release", "suffix"), DRIVERS, ids=[row[0] for row in DRIVERS])
def test_drivers(text, dotted, release, suffix):
    version = parse_driver(text)
    assert version is not None
    assert (version.dotted, version.release, version.suffix) == (dotted, release, suffix)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("6.3.13-V1.12.0a", "6.3.28-V1.3.0b"),
        ("6.3.28-V1.3.0a", "6.3.28-V1.3.0b"),
        ("6.3.28-V1.3.0", "6.3.28-V1.3.0b"),
        ("6.2.26-V1.5", "6.3.3-V1.8.0"),
        ("6.3.16", "6.3.28-V1.3.0b"),
    ],
)
def test_dotted_numbers_of_drivers_come_first(older, newer):
    left, right = parse_driver(older), parse_driver(newer)
    assert left is not None
    assert right is not None
    assert (compare_drivers(left, right), compare_drivers(right, left)) == (-1, 1)


def test_a_missing_release_makes_drivers_incomparable_only_where_it_decides():
    bare, full = parse_driver("6.3.16"), parse_driver("6.3.16-V1.1.0a")
    assert bare is not None
    assert full is not None
    assert compare_drivers(bare, full) is None
    assert compare_drivers(full, full) == 0
    assert parse_driver("none at all") is None


def test_codes_of_libraries():
    assert [format_library_version(code) for code in (22203, 21903, 2708, 23007)] == [
        "2.22.3", "2.19.3", "2.7.8", "2.30.7",
    ]  # fmt: skip
    assert [format_hip_version(code) for code in (60326113, 50724311, 50221153)] == [
        "6.3.26113", "5.7.24311", "5.2.21153",
    ]  # fmt: skip
    assert same_hip_family("6.3.26113", "6.3.26093-abc")
    assert not same_hip_family("5.7.24311", "6.3.26113")


@given(st.text(max_size=120))
def test_no_text_makes_a_parser_fail(text):
    assert parse_wheel(text).raw == text.strip()
    parse_driver(text)
    read_dtk(text)
    read_numbers(text)


@given(
    st.from_regex(r"\d\.\d{1,2}\.\d(\+das\.opt\d)?[.+]dtk2[3-6](04|10)[1-4]?(\.torch2\d\d)?", fullmatch=True)
)
def test_dtk_is_found_wherever_it_stands_behind_the_plus(text):
    if "+" in text:
        assert parse_wheel(text).dtk
