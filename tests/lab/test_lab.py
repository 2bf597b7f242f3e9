"""The lab keeps its promises: without them the tests that stand on it would prove nothing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.fixtures import FOLDER
from tests.lab.lab import Lab
from tests.lab.process import list_children

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
SSH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=3"]


def test_hosts_have_names_addresses_and_a_real_sshd(lab: Lab) -> None:
    names = lab.up(2)
    assert names == ["node001", "node002"]
    assert lab.run(1, ["hostname"]).stdout == "node001\n"
    for target in ("node002", lab.address(2), "root@node002"):
        answer = lab.run(1, [*SSH, target, "hostname; echo $SSH_CONNECTION"])
        assert answer.stdout.split()[:4] == [
            "node002",
            lab.address(1),
            answer.stdout.split()[2],
            lab.address(2),
        ]
    assert lab.run(2, [*SSH, "node001", "echo $0 $HOME"]).stdout == f"bash {lab.home}\n"


def test_each_host_has_its_own_memory_disks_and_opt_and_shares_the_rest(lab: Lab, lab_path: Path) -> None:
    lab.up(2)
    for folder in ("/tmp", "/run", "/dev/shm", "/opt", "~/.ssh"):
        lab.run(1, ["bash", "-c", f"echo one > {folder}/mark"], check=True)
        assert lab.run(2, ["bash", "-c", f"ls {folder}/mark"]).returncode != 0, folder
    lab.run(1, ["bash", "-c", f"echo one > {lab_path}/mark; echo one > ~/mark"], check=True)
    assert lab.run(2, ["bash", "-c", f"cat {lab_path}/mark ~/mark"]).stdout == "one\none\n"
    assert not Path("/opt/mark").exists()


def test_a_later_host_is_known_to_the_earlier_ones(lab: Lab) -> None:
    lab.up(1)
    lab.up(3)
    assert lab.run(1, [*SSH, "node003", "hostname"]).stdout == "node003\n"
    assert lab.run(3, [*SSH, "node001", "hostname"]).stdout == "node001\n"


def test_a_cut_cable_is_silent_and_can_be_put_back(lab: Lab) -> None:
    lab.up(2)
    lab.cut(2)
    assert lab.run(1, [*SSH, "node002", "true"]).returncode == 255
    lab.heal(2)
    assert lab.run(1, [*SSH, "node002", "hostname"]).stdout == "node002\n"


def test_a_killed_host_tells_nobody_and_boots_with_its_disk_but_without_its_memory(lab: Lab) -> None:
    lab.up(2)
    lab.run(2, ["bash", "-c", "echo kept > /opt/kept; echo lost > /tmp/lost"], check=True)
    session = lab.popen(1, [*SSH, "node002", "echo here; sleep 60"], stdout=subprocess.PIPE)
    assert session.stdout.readline() == "here\n"
    lab.kill(2)
    assert lab.processes(2) == []
    time.sleep(0.5)
    assert session.poll() is None, "the peer was told of a power loss"
    lab.boot(2)
    assert lab.run(1, [*SSH, "node002", "cat /opt/kept; ls /tmp"]).stdout == "kept\n"


def test_processes_of_one_host_are_listed_and_awaited(lab: Lab) -> None:
    lab.up(2)
    baseline = lab.baseline(2)
    assert {entry.pid for entry in baseline} >= {1}
    session = lab.popen(1, [*SSH, "node002", "sleep 4711"])
    while not lab.leftover(2, "sleep 4711"):
        time.sleep(0.02)
    assert lab.leftover(1, "sleep 4711")[0].cmdline.startswith("ssh")
    with pytest.raises(
        AssertionError, match=r"still on node002 after 0.1 s:\n  \d+ sshd.*\n  \d+ .*sleep 4711"
    ):
        lab.wait_gone(2, within_s=0.1)
    for entry in lab.leftover(2, "sleep 4711"):
        entry.kill()
    assert lab.wait_gone(2, within_s=9) < 9
    assert session.wait(9) == 255
    assert lab.baseline(2) == baseline


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGKILL]
)
def test_signals_reach_the_command_itself(lab: Lab, number: signal.Signals) -> None:
    lab.up(1)
    process = lab.popen(1, ["sleep", "4712"])
    while not lab.leftover(1, "sleep 4712"):
        time.sleep(0.01)
    process.send_signal(number)
    assert process.wait(9) == -number
    lab.wait_gone(1, "sleep 4712", within_s=9)


def test_commands_start_with_default_signal_handlers_and_a_clean_environment(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.up(1)
    monkeypatch.setenv("RANK", "7")
    handlers = (
        "import signal; print([s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN])"
    )
    # Python itself ignores SIGPIPE and SIGXFSZ
    assert (
        lab.run(1, ["python3", "-c", handlers]).stdout == "[<Signals.SIGPIPE: 13>, <Signals.SIGXFSZ: 25>]\n"
    )
    names = {line.split("=")[0] for line in lab.run(1, ["env"], env={"MINE": "1"}).stdout.splitlines()}
    assert names == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TERM", "MINE"}


def test_exit_codes_input_and_stopping(lab: Lab) -> None:
    lab.up(1)
    assert lab.run(1, ["bash", "-c", "exit 3"]).returncode == 3
    assert lab.run(1, ["cat"], input="words\n").stdout == "words\n"
    assert lab.run(1, ["cat"], input=b"\xff\n").stdout == b"\xff\n"
    assert lab.run(1, ["nothing-of-that-name"]).returncode == 127
    process = lab.popen(1, ["sleep", "60"])
    os.kill(lab.real_pid(process), signal.SIGSTOP)
    end = time.monotonic() + 9
    while Path(f"/proc/{lab.real_pid(process)}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < end, "SIGSTOP did not reach the command"
        time.sleep(0.01)
    with pytest.raises(AssertionError, match=r"node001: .* ran for more than 0.2 s and said:\nearly"):
        lab.run(1, ["bash", "-c", "echo early; sleep 60 & wait"], timeout=0.2)


def test_sshd_takes_lines_of_its_own_and_forgets_them(lab: Lab) -> None:
    lab.up(2)
    lab.set_sshd(2, "Port 2222", "SetEnv PLANTED=yes")
    assert lab.run(1, [*SSH, "node002", "true"]).returncode == 255
    assert (
        lab.run(1, [*SSH, "-p", "2222", "-o", "StrictHostKeyChecking=no", "node002", "echo $PLANTED"]).stdout
        == "yes\n"
    )
    lab.restore()
    assert lab.run(1, [*SSH, "node002", "echo $PLANTED"]).stdout == "\n"
    lab.stop_sshd(2)
    assert lab.run(1, [*SSH, "node002", "true"]).returncode == 255


def test_users_are_let_in(lab: Lab) -> None:
    lab.up(2)
    home = lab.add_user("alice")
    assert lab.run(1, [*SSH, "alice@node002", "id -un; pwd"]).stdout == f"alice\n{home}\n"


def test_torch_works_on_a_host(lab: Lab) -> None:
    lab.up(1)
    code = """if 1:
        import torch, torch.multiprocessing as mp
        tensor = torch.ones(3).share_memory_()   # /dev/shm
        print(tensor.sum().item())"""
    done = lab.run(1, [sys.executable, "-W", "ignore", "-c", code], check=True)
    assert done.stdout == "3.0\n"


def test_the_end_leaves_nothing() -> None:
    lab = Lab(FOLDER / "ends")
    lab.up(2)
    lab.popen(2, ["bash", "-c", "setsid sleep 4713 & sleep 4713"])
    outside = {entry.outer_pid for i in (1, 2) for entry in lab.processes(i)} | {lab._switch.pid}
    lab.down()
    assert [pid for pid in outside if Path(f"/proc/{pid}").exists()] == []
    assert str(lab.disk.folder) not in Path("/proc/self/mountinfo").read_text()
    assert sorted(path.name for path in lab.disk.folder.iterdir()) == ["bin", "lock"]


def test_the_end_of_the_test_run_ends_the_lab() -> None:
    code = f"""if 1:
        import os, time
        from pathlib import Path
        from tests.lab.lab import Lab
        lab = Lab(Path({str(FOLDER / "ends")!r})); lab.up(1)
        print(*[entry.outer_pid for entry in lab.processes(1)], flush=True)
        time.sleep(60)"""
    words = [sys.executable, "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        pids = process.stdout.readline().split()
        hosts = list_children(process.pid)
        process.kill()
    assert pids
    assert hosts
    end = time.monotonic() + 9
    while left := [pid for pid in [*pids, *hosts] if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    shutil.rmtree(FOLDER / "ends")
