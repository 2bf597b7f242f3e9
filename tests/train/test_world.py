"""This rank's place, and mistakes that are told once."""

from __future__ import annotations

import pytest

from launcher.base.errors import ConfigError, UsageError
from launcher.train.world import (
    World,
    agree,
    fingerprint,
    gather_floats,
    read_world,
    write_error,
)

pytestmark = pytest.mark.train
VARIABLES = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip


def test_torchruns_variables_give_the_place():
    assert read_world(VARIABLES) == World(5, 8, 1, 4, has_group=True)
    assert not read_world(VARIABLES).is_main


def test_without_them_this_is_the_only_rank():
    assert read_world({"LOCAL_RANK": "3"}) == World()
    assert World().is_main


def test_some_of_them_are_a_mistake():
    with pytest.raises(UsageError, match="MASTER_ADDR, MASTER_PORT are not set"):
        read_world({"RANK": "0", "WORLD_SIZE": "2"})


def test_exchanges_of_a_single_rank_answer_themselves():
    assert gather_floats([1.0, 2.0], "cpu") == [[1.0, 2.0]]
    assert agree(lambda: "done", "cpu") == "done"
    with pytest.raises(ConfigError, match="mine"):
        agree(lambda: (_ for _ in ()).throw(ConfigError("mine")), "cpu")


def test_fingerprints_survive_a_float():
    assert fingerprint("a") == float(int(fingerprint("a"))) != fingerprint("b")


def test_mistakes_are_told_as_the_launcher_does(capsys):
    write_error(ConfigError("one\ntwo", "cure"))
    assert capsys.readouterr().err == "dcu-launch: error: one\ndcu-launch: error: two\n  hint: cure\n"
