"""Working folder, script and Python that a host lacks: told before anything starts, with host and path."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.whole_path.facts import facts_in_lab, write_script

pytestmark = pytest.mark.lab


def refused(lab, folder: Path, hosts: str, *words, **run) -> str:
    (folder / "hosts").write_text(hosts)
    done = lab.launch(["--hosts", folder / "hosts", *words], **{"cwd": folder, "timeout": 60, **run})
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for host in (1, 2):
        lab.wait_gone(host, within_s=9)
    return done.stderr


def two(names) -> str:
    return "".join(f"{name} slots=1\n" for name in names)


def test_working_folder_that_one_host_lacks(lab, lab_path: Path):
    names = lab.up(2)
    write_script(lab_path)
    lab.run(1, ["mkdir", "-p", "/tmp/only here"], check=True)
    lab.run(1, ["cp", lab_path / "facts.py", "/tmp/only here"], check=True)
    said = refused(lab, lab_path, two(names), "facts.py", cwd="/tmp/only here")
    assert f"WORKDIR_MISSING: {names[1]} has no folder /tmp/only here" in said
    assert "--workdir" in said
    assert "--sync" in said
    assert names[0] not in said.split("hint")[0]
    assert lab.run(2, ["ls", "/tmp/only here"]).returncode != 0, "the refused start made the folder itself"
    facts = facts_in_lab(lab, lab_path, two(names), "--workdir", lab_path, "facts.py")
    assert {told["cwd"] for told in facts} == {str(lab_path)}


def test_script_that_one_host_lacks(lab, lab_path: Path):
    names = lab.up(2)
    lab.run(1, ["tee", "/tmp/own.py"], input="pass\n", check=True)
    said = refused(lab, lab_path, two(names), "/tmp/own.py")
    assert f"PATH_MISSING: {names[1]} lacks /tmp/own.py" in said


def test_deepspeed_file_that_one_host_lacks(lab, lab_path: Path):
    names = lab.up(2)
    write_script(lab_path)
    lab.run(1, ["tee", "/tmp/ds.json"], input="{}", check=True)
    said = refused(lab, lab_path, two(names), "--deepspeed", "/tmp/ds.json", "facts.py")
    assert f"{names[1]} lacks /tmp/ds.json" in said


def test_python_that_one_host_lacks(lab, lab_path: Path):
    names = lab.up(2)
    write_script(lab_path)
    hosts = f"{names[0]} slots=1\n{names[1]} slots=1 python=/opt/py/bin/python\n"
    said = refused(lab, lab_path, hosts, "facts.py")
    assert f"{names[1]}: /opt/py/bin/python is missing" in said
    assert names[0] not in said.split("hint")[0]


def test_unequal_slots(lab, lab_path: Path):
    names = lab.up(2)
    facts = facts_in_lab(lab, lab_path, f"{names[0]} slots=1\n{names[1]} slots=3\n", "facts.py")
    assert [(told["env"]["NODE_RANK"], told["env"]["LOCAL_RANK"]) for told in facts] == [
        ("0", "0"), ("1", "0"), ("1", "1"), ("1", "2")
    ]  # fmt: skip
    assert {told["env"]["WORLD_SIZE"] for told in facts} == {"4"}
    assert [told["env"]["LOCAL_WORLD_SIZE"] for told in facts] == ["1", "3", "3", "3"]
