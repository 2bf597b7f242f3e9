"""A healthy pair of DCU nodes passes; each planted fault gives its finding on its host and no other, and starts no rank."""

import json
import re

import pytest

from tests.fakes.fakedtk import clock_library, rccl_library
from tests.preflight.dcu_lab import DcuHosts, findings_of

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def dcu_hosts(lab_session):
    hosts = DcuHosts(lab_session, 2)
    yield hosts
    hosts.down()


@pytest.fixture
def dcu(dcu_hosts, lab):
    """The pair, as the last test left it: who plants starts from anew, who does not calls ``heal``."""
    return dcu_hosts


def check(dcu, *words, settings=None):
    """``check --json`` over the pair: exit code and findings."""
    done = dcu.lab.launch(
        ["check", "--json", "--no-torch-check", "--hosts", dcu.hostfile(settings), *words],
        cwd=dcu.folder,
    )
    assert done.stdout, done.stderr
    return done.returncode, findings_of(done.stdout)


def start(dcu, *words, settings=None):
    """A run of a script that leaves a file; its exit code, stderr, and whether a rank was started."""
    (dcu.folder / "mark.py").write_text("import os\nopen('started.' + os.environ['RANK'], 'w').close()\n")
    for mark in dcu.folder.glob("started.*"):
        mark.unlink()
    done = dcu.lab.launch(["--hosts", dcu.hostfile(settings), *words, "mark.py"], cwd=dcu.folder)
    return done.returncode, done.stderr, len(list(dcu.folder.glob("started.*")))


def test_a_healthy_pair_passes(dcu):
    dcu.heal()
    assert check(dcu) == (0, [])
    assert start(dcu) == (0, "", 16)


def plant_stray(dcu):
    dcu.heal()
    dcu.write(2, "/opt/stray/librccl.so.1", rccl_library(21903))
    dcu.write(2, "/opt/dtk/env.sh", "export LD_LIBRARY_PATH=/opt/stray:$LD_LIBRARY_PATH\n", append=True)


#: name -> what is planted on the second host, words of its hostfile line, level and code
FAULTS = {
    "another RCCL": (lambda dcu: dcu.plant(2, rccl=21903), "", "error", "RCCL_DIFFERS"),
    "a stray RCCL first in the path": (plant_stray, "", "error", "LIBRARY_PATH_ORDER"),
    "torch for another DTK": (
        lambda dcu: dcu.plant(2, {"torch": "2.3.0+das.opt2.dtk24043", "torchvision": None}), "", "error",
        "TORCH_FOR_OTHER_DTK"),
    "a wheel for upstream ROCm": (
        lambda dcu: dcu.plant(2, {"torch": "2.5.1+rocm6.2"}), "", "error", "ROCM_WHEEL_ON_DCU"),
    "a driver too old": (lambda dcu: dcu.plant(2, driver="6.3.6-V1.9.0c"), "", "error", "DRIVER_TOO_OLD"),
    "a driver not loaded": (
        lambda dcu: dcu.plant(2, loaded=False, hyhal=True), "", "error", "HYCU_DRIVER_NOT_LOADED"),
    "no device file": (lambda dcu: dcu.plant(2, kfd=False), "", "error", "HCU_DEVICE_NODE_MISSING"),
    "no hyhal": (lambda dcu: dcu.plant(2, hyhal=False), "", "error", "HYHAL_MISSING"),
    "hyhal without its libraries": (
        lambda dcu: (dcu.plant(2), dcu.lab.run(2, ["rm", "-r", "/opt/hyhal/lib"], check=True)), "",
        "error", "HYHAL_MISSING"),
    "no hy-smi": (
        lambda dcu: (dcu.plant(2), dcu.lab.run(2, ["rm", "/opt/hyhal/bin/hy-smi"], check=True)), "",
        "warning", "CARD_TOOL_MISSING"),
    "variables that contradict": (
        None, "env.ROCR_VISIBLE_DEVICES=4,5 env.HIP_VISIBLE_DEVICES=4,5", "error", "VISIBILITY_CONTRADICTS"),
    "one visible card": (None, "env.HIP_VISIBLE_DEVICES=0", "error", "FEWER_CARDS_THAN_SLOTS"),
    "a number that is no card": (None, "devices=0,1,2,3,4,5,6,9", "error", "FEWER_CARDS_THAN_SLOTS"),
    "seven cards of eight": (lambda dcu: dcu.plant(2, cards=7), "", "error", "FEWER_CARDS_THAN_SLOTS"),
    "Python missing": (
        lambda dcu: dcu.plant(2, {"no Python": None}), "", "error", "PYTHON_MISSING"),
    "no DTK in the shell": (
        lambda dcu: dcu.plant(2, place="/opt/software/dtk-25.04.2"), "", "error", "DTK_NOT_SET_UP"),
    "an interface that is not there": (None, "env.GLOO_SOCKET_IFNAME=eth9", "error", "INTERFACE_MISSING"),
    "another DTK with its own libraries": (
        lambda dcu: dcu.plant(2, dtk="25.04.1", rccl=21903, hip=60325000), "", "error", "DTK_DIFFERS"),
    "another transformers": (
        lambda dcu: dcu.plant(2, {"transformers": "4.44.2"}), "", "warning", "VERSIONS_DIFFER"),
    "a busy card": (lambda dcu: dcu.plant(2, used_percent=43.0), "", "warning", "CARDS_BUSY"),
}  # fmt: skip
#: faults with which a run is tried as well; with every other one, its check alone
ALSO_RUN = (
    "another RCCL",
    "a driver too old",
    "variables that contradict",
    "Python missing",
    "another transformers",
)
#: faults that truly show in two ways
BESIDES = {"another DTK with its own libraries": [("warning", "TORCH_FOR_OTHER_DTK")]}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_on_its_host_alone(dcu, name):
    plant, words, level, code = FAULTS[name]
    (plant or DcuHosts.heal)(dcu)
    expected = sorted([(level, code), *BESIDES.get(name, [])])
    exit_code, findings = check(dcu, settings={2: words})
    assert sorted((found_level, found_code) for found_level, found_code, _ in findings) == expected
    assert all(hosts == [dcu.names[1]] for _, _, hosts in findings)
    assert exit_code == (3 if level == "error" else 0)
    if name not in ALSO_RUN:
        return
    exit_code, stderr, started = start(dcu, settings={2: words})
    assert (exit_code, started) == ((3, 0) if level == "error" else (0, 16)), stderr
    assert code in stderr
    assert dcu.names[1] in stderr


def test_a_finding_that_is_allowed_passes_and_is_recorded(dcu):
    dcu.plant(2, rccl=21903)
    exit_code, findings = check(dcu, "--allow", "RCCL_DIFFERS")
    assert (exit_code, [code for _, code, _ in findings]) == (0, ["RCCL_DIFFERS"])
    exit_code, stderr, started = start(
        dcu, "--allow", "RCCL_DIFFERS", "--run-dir", str(dcu.folder / "allowed")
    )
    assert (exit_code, started) == (0, 16)
    assert "RCCL_DIFFERS" in stderr
    record = json.loads((dcu.folder / "allowed" / "preflight.json").read_text())
    assert [(row["code"], row["allowed"]) for row in record["findings"]] == [("RCCL_DIFFERS", True)]


def test_another_configuration_on_one_host(dcu):
    dcu.heal()
    for i, batch in ((1, 4), (2, 8)):
        dcu.write(i, "/opt/conf/ds.json", json.dumps({"train_micro_batch_size_per_gpu": batch}))
    (dcu.folder / "mark.py").write_text("pass\n")
    exit_code, findings = check(dcu, "--deepspeed", "/opt/conf/ds.json", "mark.py")
    assert (exit_code, findings) == (3, [("error", "FILES_DIFFER", [dcu.names[1]])])


def test_a_clock_that_is_90_seconds_off(dcu):
    dcu.heal()
    library = dcu.folder / "libclock.so"
    library.write_bytes(clock_library(90))
    dcu.lab.set_sshd(2, f"SetEnv LD_PRELOAD={library}")
    exit_code, findings = check(dcu)
    dcu.lab.set_sshd(2)
    assert exit_code == 0
    # the library is preloaded on that host alone, which is a difference too
    assert [finding for finding in findings if finding[1] != "ENVIRONMENT_DIFFERS"] == [
        ("warning", "CLOCK_OFF", [dcu.names[1]])
    ]


def test_an_address_of_the_master_that_nobody_reaches(dcu):
    dcu.heal()
    exit_code, findings = check(dcu, "--master-addr", "10.77.99.99")
    assert (exit_code, findings) == (3, [("error", "MASTER_UNREACHABLE", [dcu.names[1]])])


def test_the_table_folds_equal_nodes_and_marks_what_differs(dcu):
    dcu.plant(2, {"transformers": "4.44.2"}, rccl=21903)
    cwd = dcu.folder / "empty"
    cwd.mkdir()
    done = dcu.lab.launch(["check", "--no-torch-check", "--hosts", dcu.hostfile()], cwd=cwd)
    assert done.returncode == 3
    assert re.search(rf"^\s+{dcu.names[0]}\s+{dcu.names[1]}$", done.stdout, re.MULTILINE)
    assert re.search(r"^RCCL +2\.22\.3 +2\.19\.3 \*$", done.stdout, re.MULTILINE)
    assert re.search(r"^transformers +4\.51\.3 +4\.44\.2 \*$", done.stdout, re.MULTILINE)
    assert re.search(r"^DTK +25\.04\.2 +25\.04\.2$", done.stdout, re.MULTILINE)
    assert (
        f"error RCCL_DIFFERS: RCCL is 2.22.3 on {dcu.names[0]}, but {dcu.names[1]} has 2.19.3" in done.stdout
    )
    assert done.stdout.startswith(f"ranks would meet at {dcu.lab.address(1)} over eth0\n")
    assert "cure:" in done.stdout
    assert done.stdout.endswith("1 error, 1 warning\n")
    assert "\x1b" not in done.stdout
    assert not (cwd / "runs").exists()


def test_nothing_is_left_on_the_nodes(dcu):
    check(dcu)
    for host in (1, 2):
        dcu.lab.wait_gone(host, within_s=6)
