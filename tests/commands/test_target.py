"""TARGET that is none, and options on the wrong side of it."""

import pytest

from launcher.base.errors import UsageError
from launcher.cli import VERBS
from launcher.commands.target import VERB_NAMES, read_target, warn_of_stray_options


def test_the_verbs_are_those_of_the_command_line():
    assert tuple(VERBS) == VERB_NAMES


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("check", "a verb stands first: dcu-launch check ..."),
        ("constraint", "did you mean: dcu-launch constraints"),
        ("my.sh", f"verbs are {', '.join(VERB_NAMES)}; for a module: dcu-launch -m my.sh"),
    ],
)
def test_what_is_no_target_is_told_what_it_may_be(word, hint):
    with pytest.raises(UsageError) as raised:
        read_target([word], as_module=False)
    assert raised.value.hint == hint


def test_a_hostfile_in_the_place_of_a_target_is_recognized(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h2").write_text("node01\n")
    with pytest.raises(UsageError) as raised:
        read_target(["h2"], as_module=False)
    assert raised.value.hint == "a hostfile is named by --hosts: --hosts h2"


def test_our_options_behind_a_script_that_does_not_know_them_are_noticed(tmp_path):
    script = tmp_path / "t.py"
    script.write_text("import argparse\nparser.add_argument('--start')\n")
    words = [str(script), "--hosts", "h", "--dry-run=nodes", "--start", "3", "--lr", "1"]
    target = read_target(words, as_module=False)
    assert warn_of_stray_options(target).startswith(
        f"--hosts, --dry-run behind {target.name} goes to the script; "
    )
    assert warn_of_stray_options(read_target(["json.tool", "--hosts"], as_module=True)) == ""
