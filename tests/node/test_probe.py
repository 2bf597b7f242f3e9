"""The probe on nodes that are folders: DCU nodes of several kinds, a bare CPU node, and nodes where things are broken."""

import os
import subprocess
import sys
import time

import pytest

from launcher.node import (
    probe,
    probe_cards,
    probe_dtk,
    probe_libraries,
    probe_network,
    probe_python,
    probe_system,
)
from launcher.node.ask import ask, ask_all
from tests.fakes.fakedtk import FakeNode, rccl_library


@pytest.fixture
def node(tmp_path):
    """A healthy node below a folder; libraries are found there too, since its paths name the folder."""
    FakeNode(hcas=("mlx5_0", "mlx5_1")).write(tmp_path)
    return tmp_path


def variables_of(node):
    dtk = f"{node}/opt/dtk"
    return {
        "HOME": str(node / "home"),
        "PATH": os.environ["PATH"],
        "DTKROOT": dtk,
        "LD_LIBRARY_PATH": f"{dtk}/hip/lib:{dtk}/lib",
    }


def test_driver_and_device_nodes(node):
    found = probe_dtk.find_driver(str(node))
    assert (found["module"], found["version"], found["loaded"]) == ("hycu", "6.3.16-V1.1.0a", True)
    assert found["nodes"] == {"/dev/kfd": "ok", "/dev/mkfd": "missing", "/dev/dri": "ok"}
    assert (found["hyhal"], found["hyhal_libraries"], found["pci_cards"]) == ("/opt/hyhal", True, 8)
    (node / "opt/hyhal/lib").rename(node / "opt/hyhal/lib64")
    assert probe_dtk.find_driver(str(node))["hyhal_libraries"] is True
    (node / "opt/hyhal/lib64").rename(node / "opt/hyhal/share")
    assert probe_dtk.find_driver(str(node))["hyhal_libraries"] is False


def test_a_node_without_anything(tmp_path):
    found = probe_dtk.find_driver(str(tmp_path))
    assert (found["module"], found["loaded"], found["hyhal"], found["pci_cards"]) == (None, False, None, None)
    assert set(found["nodes"].values()) == {"missing"}
    assert probe_dtk.find_dtk({"PATH": str(tmp_path)}, str(tmp_path))["root"] is None
    cards = probe_cards.find_cards({"PATH": str(tmp_path)}, None, str(tmp_path))
    assert (cards["kind"], cards["count"], cards["visible"], cards["list"]) == ("cpu", 0, None, [])


def test_dtk_of_the_environment_and_no_other(node):
    found = probe_dtk.find_dtk(variables_of(node))
    assert (found["version"], found["version_file"], found["named_by"]) == (
        "25.04.2",
        ".info/version",
        "DTKROOT",
    )
    assert found["env_script"]
    missing = probe_dtk.find_dtk({**variables_of(node), "DTKROOT": f"{node}/opt/dtk-26.04"})
    assert (missing["root"], missing["exists"], missing.get("version")) == (
        f"{node}/opt/dtk-26.04",
        False,
        None,
    )


def test_dtk_version_file_of_newer_releases_comes_first(node):
    (node / "opt/dtk/.dtk_version").write_text("DTK-26.04-rc4\nsecond line\n")
    assert probe_dtk.find_dtk(variables_of(node))["version"] == "DTK-26.04-rc4"


def test_dtk_by_hip_path_and_by_program(node):
    dtk = node / "opt/dtk"
    assert probe_dtk.find_dtk({"HIP_PATH": f"{dtk}/hip"})["root"] == str(dtk)
    assert probe_dtk.find_dtk({"PATH": f"{dtk}/bin"})["root"] == str(dtk)


def test_cards_by_kernel_and_tools(node):
    found = probe_cards.find_cards({"PATH": "/usr/bin:/bin"}, f"{node}/opt/dtk", str(node))
    assert (found["kind"], found["count"]) == ("dcu", 8)
    assert found["counts"] == {"kernel": 8, "smi": 8, "rocminfo": 8}
    assert found["driver"] == "6.3.16-V1.1.0a"
    assert found["processes"] == []
    expected = {
        "index": 5,
        "model": "BW",
        "gfx": "gfx936",
        "memory_mib": 65520,
        "pci": "0000:0e:00.0",
        "numa": 1,
    }
    assert found["list"][5].items() >= expected.items()
    assert set(found["asked"].values()) == {""}


def test_a_card_that_the_driver_lost(node):
    (node / "sys/class/kfd/kfd/topology/nodes/8/properties").unlink()
    found = probe_cards.find_cards({"PATH": "/usr/bin:/bin"}, None, str(node))
    assert (found["count"], found["counts"]["kernel"], found["counts"]["smi"]) == (7, 7, 8)


def test_tools_that_fail_leave_what_the_kernel_knows(node):
    (node / "opt/hyhal/bin/hy-smi").write_text("#!/bin/sh\necho garbage; kill -SEGV $$\n")
    found = probe_cards.find_cards({"PATH": "/usr/bin:/bin"}, None, str(node))
    assert (found["kind"], found["count"], found["processes"]) == ("dcu", 8, None)
    assert "signal 11" in found["asked"]["table"]


@pytest.mark.parametrize(
    ("variables", "visible"),
    [({}, None), ({"HIP_VISIBLE_DEVICES": "0, 1"}, ["0", "1"]), ({"ROCR_VISIBLE_DEVICES": ""}, []),
     ({"ROCR_VISIBLE_DEVICES": "4,5", "HIP_VISIBLE_DEVICES": "0"}, ["0"])],
)  # fmt: skip
def test_visible_cards(variables, visible):
    assert probe_cards.visible_cards(variables) == visible


def test_the_loader_says_which_library_and_the_library_which_version(node):
    variables = variables_of(node)
    found = probe_libraries.ask_libraries(sys.executable, [], variables, variables["DTKROOT"], "dcu")
    assert found["rccl"] == {"path": f"{node}/opt/dtk/lib/librccl.so.1.0", "code": 22203}
    assert found["hip"] == {"path": f"{node}/opt/dtk/hip/lib/libgalaxyhip.so.5", "code": 60325422}
    assert set(found) == {"rccl", "hip"}


def test_a_stray_library_first_in_the_path_is_the_one_that_answers(node):
    (node / "stray").mkdir()
    (node / "stray" / "librccl.so.1").write_bytes(rccl_library(21903))
    variables = variables_of(node)
    variables["LD_LIBRARY_PATH"] = f"{node}/stray:" + variables["LD_LIBRARY_PATH"]
    found = probe_libraries.ask_libraries(sys.executable, [], variables, variables["DTKROOT"], "dcu")
    assert found["rccl"] == {"path": f"{node}/stray/librccl.so.1", "code": 21903}
    holders = probe_dtk.find_holders(variables)
    assert holders["rccl"] == [f"{node}/stray", f"{node}/opt/dtk/lib"]
    assert holders["hip"] == [f"{node}/opt/dtk/hip/lib"]


def test_a_library_that_is_missing_or_broken_is_an_answer(node):
    variables = {**variables_of(node), "LD_LIBRARY_PATH": ""}
    found = probe_libraries.ask_libraries(sys.executable, [], variables, variables["DTKROOT"], "dcu")
    assert "cannot open shared object file" in found["rccl"]["error"]
    (node / "opt/dtk/lib/librccl.so.1.0").write_bytes(b"not a library")
    found = probe_libraries.ask_libraries(sys.executable, [], variables_of(node), variables["DTKROOT"], "dcu")
    assert found["rccl"]["error"]
    assert found["hip"]["code"] == 60325422


def test_no_library_is_asked_for_on_a_bare_node():
    assert probe_libraries.ask_libraries(sys.executable, [], {"PATH": "/bin"}, None, "cpu") == {}


def test_hcas_and_links(node):
    assert probe_network.find_hcas(str(node)) == [
        {"name": "mlx5_0", "state": "active", "rate": "400 Gb/sec (4X NDR)", "link": None},
        {"name": "mlx5_1", "state": "active", "rate": "400 Gb/sec (4X NDR)", "link": None},
    ]
    assert probe_network.find_hcas(str(node / "nothing")) == []
    assert "lo" in probe_network.describe_links()


def test_caches_and_when_they_were_used(node):
    place = node / "home/.triton/cache"
    place.mkdir(parents=True)
    assert probe_dtk.find_caches(variables_of(node)) == {}
    (place / "abc").mkdir()
    os.utime(place / "abc", (1000, 1000))
    os.utime(place, (2000, 2000))
    assert probe_dtk.find_caches(variables_of(node)) == {str(place): 2000}


def test_system(node):
    found = probe_system.describe_system({"workdir": str(node)}, {"HOME": str(node)})
    assert found["kernel"]
    assert found["free_run_dir"] > 0
    assert found["cache_dir"] == f"{node}/.cache"
    assert found["free_cache"] == pytest.approx(found["free_run_dir"], rel=0.01)


def test_digests_tell_contents_apart(tmp_path):
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "weights").write_bytes(b"x" * 100)
    first = probe_system.digest_paths(["a.py", "model", "none"], str(tmp_path))
    assert set(first) == {"a.py", "model"}
    lines = first["model"].split("\n")
    assert (lines[0].startswith("config.json | sha256 "), lines[1]) == (True, "weights | 100 bytes")
    (tmp_path / "a.py").write_text("2")
    (tmp_path / "model" / "weights").write_bytes(b"x" * 99)
    second = probe_system.digest_paths(["a.py", "model"], str(tmp_path))
    assert second["a.py"] != first["a.py"]
    assert second["model"] != first["model"]
    (tmp_path / "model" / "weights").write_bytes(b"y" * 100)
    (tmp_path / "model" / "config.json").write_text("[]")
    assert probe_system.digest_paths(["model"], str(tmp_path))["model"] != first["model"]
    for number in range(63):
        (tmp_path / "model" / f"shard-{number}").touch()
    assert probe_system.digest_paths(["model"], str(tmp_path))["model"].startswith("65 files ")


def test_packages_without_importing_them(tmp_path):
    for name in ("torch-2.4.1+das.opt2.dtk2504.dist-info", "flash_attn-2.6.1+das.opt4.dtk2504.dist-info",
                 "triton-2.1.0_das1.0.dist-info", "other-1.0.dist-info"):  # fmt: skip
        (tmp_path / name).mkdir()
    old = "2.1.0+das1.0+git3841f975.abi0.dtk2404"
    (tmp_path / "triton-2.1.0_das1.0.dist-info" / "METADATA").write_text(f"Name: triton\nVersion: {old}\n")
    assert probe_python.read_packages([str(tmp_path)]) == {
        "torch": "2.4.1+das.opt2.dtk2504",
        "flash_attn": "2.6.1+das.opt4.dtk2504",
        "triton": old,
    }


def test_torch_is_read_not_imported(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.4.1'\ndebug = False\n"
        "cuda: Optional[str] = None\ngit_version = 'abc'\nhip: Optional[str] = '6.3.26113'\n"
    )
    folder = tmp_path / "torch-2.4.1+das.opt2.dtk2504.dist-info"
    folder.mkdir()
    (folder / "WHEEL").write_text("Wheel-Version: 1.0\nTag: cp310-cp310-linux_x86_64\n")
    assert probe_python.read_torch_files([str(tmp_path)], "2.4.1+das.opt2.dtk2504") == {
        "torch_file": {"version": "2.4.1", "cuda": None, "hip": "6.3.26113"},
        "wheel_tags": ["cp310-cp310-linux_x86_64"],
    }


def test_programs_that_hang_are_ended_with_all_they_started(tmp_path):
    script = f"sleep 60 & echo $! >{tmp_path}/pid; echo said; wait"
    start = time.monotonic()
    answer = ask(["sh", "-c", script], os.environ, 0.3)
    assert time.monotonic() - start < 3
    assert "no answer" in answer.error
    pid = int((tmp_path / "pid").read_text())
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    assert state.strip()[:1] in ("", "Z")


def test_programs_are_asked_side_by_side():
    start = time.monotonic()
    answers = ask_all({str(n): ["sh", "-c", f"sleep 0.3; echo {n}"] for n in range(4)}, os.environ, 5)
    assert time.monotonic() - start < 1.0
    assert [answers[str(n)].text for n in range(4)] == ["0\n", "1\n", "2\n", "3\n"]
    assert "No such file" in ask(["/nowhere/program"], {}, 1).error


def test_a_whole_report_of_this_machine(tmp_path):
    message = {"workdir": str(tmp_path), "must_exist": ["x"], "like_head": sys.executable}
    report = probe.look(message, dict(os.environ))
    assert report["missing"] == ["x"]
    assert report["python"]["path"] == sys.executable
    assert "folders" not in report["python"]
    assert report.get("unknown", {}) == {}
    assert report["probe_s"] < 5


def test_a_field_that_fails_is_unknown_and_the_rest_comes(tmp_path, monkeypatch):
    def fail():
        raise RuntimeError("no such thing")

    monkeypatch.setattr(probe_dtk, "find_driver", fail)
    report = probe.look({"workdir": str(tmp_path), "like_head": sys.executable}, dict(os.environ))
    assert report["unknown"] == {"driver": "RuntimeError: no such thing"}
    assert "driver" not in report
    assert report["cpus"] >= 1
