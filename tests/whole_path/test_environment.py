"""The environment of ranks: what is sent and named, set-up on each host, prepending, cards, what is never taken along."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.whole_path.facts import facts_here, facts_in_lab, launch_here, write_script

#: sent without being asked for
BY_PATTERN = {
    "HSA_FORCE_FINE_GRAIN_PCIE": "1", "MIOPEN_FIND_MODE": "2", "GLOO_SOCKET_IFNAME": "eth0", "LD_LIBRARY_PATH": "/head/lib",
    "ROCR_ODD": "x", "PYTHONPATH": "/a:/b", "HF_HOME": "/head/hf",
}  # fmt: skip
#: of the head alone, or of no use to anybody
STAYS = {
    "FOO_OTHER": "x", "PWD_X": "x", "SLURM_JOB_ID": "7", "SSH_ORIGINAL_COMMAND": "x", "A.B": "1", "BASH_FUNC_ml%%": "() { :; }",
    "RANK": "99", "WORLD_SIZE": "99", "LOCAL_RANK": "99", "MASTER_ADDR": "192.0.2.1", "TORCHELASTIC_RUN_ID": "other",
    "OMPI_COMM_WORLD_RANK": "5", "HIP_VISIBLE_DEVICES": "3", "UID": "77",
}  # fmt: skip


@pytest.mark.lab
def test_what_reaches_ranks_on_hosts(lab, lab_path: Path):
    names = lab.up(2)
    for host in (1, 2):
        lab.run(host, ["mkdir", "-p", "/opt/site"], check=True)
        text = f"export FROM_SETUP=host{host}\nexport LD_LIBRARY_PATH=/opt/site{host}:$LD_LIBRARY_PATH\n: $UNSET_THING\n"
        lab.run(host, ["tee", "/opt/site/env.sh"], input=text, check=True)
    (lab_path / "job.env").write_text("# my job\nexport FROM_FILE='a b'\nWINS=file\n")
    hosts = (
        f"{names[0]} slots=1 env.NCCL_SOCKET_IFNAME=lo env.LD_LIBRARY_PATH+=/own/one\n"
        f"{names[1]} slots=2 env.NCCL_SOCKET_IFNAME=eth0 env.WINS=host env.HF_HOME-\n"
    )
    words = [
        "--setup", "/opt/site/env.sh", "--env-file", "job.env", "--env", "FOO_BAR", "--env", "WINS=option",
        "--env", "PATH+=/my/bin", "--env", "NEW+=/x", "facts.py",
    ]  # fmt: skip
    first, *others = facts_in_lab(
        lab, lab_path, hosts, *words, env={**BY_PATTERN, **STAYS, "FOO_BAR": "named", "WINS": "head"}
    )
    for told in (first, *others):
        env = told["env"]
        alike = {
            name: value for name, value in BY_PATTERN.items() if name not in ("LD_LIBRARY_PATH", "HF_HOME")
        }
        assert {name: env.get(name) for name in alike} == alike
        assert (env["FOO_BAR"], env["FROM_FILE"], env["NEW"]) == ("named", "a b", "/x")
        assert env["PATH"].startswith("/my/bin:/")
        kept = {name: env[name] for name in STAYS if env.get(name) == STAYS[name]}
        assert kept == {}
        assert (env["RANK"], env["WORLD_SIZE"]) == (str(told["rank"]), "3")
        assert not any(name.startswith(("SLURM_", "BASH_FUNC", "OMPI_")) for name in env)
    assert first["env"]["LD_LIBRARY_PATH"] == "/own/one:/opt/site1:/head/lib"
    assert [told["env"]["LD_LIBRARY_PATH"] for told in others] == ["/opt/site2:/head/lib"] * 2
    assert [told["env"]["FROM_SETUP"] for told in (first, *others)] == ["host1", "host2", "host2"]
    assert [told["env"]["WINS"] for told in (first, *others)] == ["option", "host", "host"]
    assert [told["env"]["NCCL_SOCKET_IFNAME"] for told in (first, *others)] == ["lo", "eth0", "eth0"]
    assert first["env"]["HF_HOME"] == "/head/hf"
    assert all("HF_HOME" not in told["env"] for told in others)


@pytest.mark.lab
def test_a_virtual_environment_gives_the_python_of_the_ranks(lab, lab_path: Path):
    names = lab.up(2)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", lab_path / "my venv"], check=True)
    hosts = f"{names[0]} slots=1 setup='venv:{lab_path}/my venv'\n{names[1]} slots=1\n"
    facts = facts_in_lab(lab, lab_path, hosts, "facts.py")
    assert facts[0]["python"] == f"{lab_path}/my venv/bin/python"
    assert facts[0]["env"]["VIRTUAL_ENV"] == f"{lab_path}/my venv"
    # sshd's PATH knows neither this nor the head's own: it is found by its full path
    assert facts[1]["python"].startswith(str(Path(sys.executable).parent))


@pytest.mark.parametrize(
    ("setup", "said"),
    [
        ("conda:training", "conda"),
        ("module:mpi", "module"),
        ("nope.sh", "there is no such file that this user can read: nope.sh"),
        ("venv:/nope", "/nope/bin/activate"),
        ("fails.sh", "no licence"),
    ],
)
def test_set_up_that_fails_names_host_step_and_reason(tmp_path: Path, setup, said):
    write_script(tmp_path)
    (tmp_path / "fails.sh").write_text("echo no licence >&2\nreturn 3\n")
    step = str(tmp_path / setup) if setup == "fails.sh" else setup
    done = launch_here(tmp_path, "--setup", step, "--nproc", "1", "facts.py")
    assert done.returncode == 3, done.stdout + done.stderr
    assert done.stderr.startswith(f"dcu-launch: error: localhost: set-up ({step})"), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "NOT_SET"], "--env NOT_SET: not set on this machine"),
        (["--env", "RANK=3"], "'RANK': set by the launcher"),
        (["--env", "A.B=3"], "'A.B': not a name"),
        (["--env", "MASTER_ADDR=x"], "use --master-addr"),
        (["--env-file", "nope.env"], "nope.env: cannot be read"),
    ],
)
def test_variables_that_cannot_be(tmp_path: Path, words, said):
    write_script(tmp_path)
    done = launch_here(tmp_path, *words, "--nproc", "1", "facts.py")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_second_run_knows_nothing_of_the_first(tmp_path: Path):
    folder = tmp_path / "work"
    folder.mkdir()
    for value in ("1", "2"):
        facts = facts_here(
            folder, "--nproc", "1", "--env", f"X={value}", "facts.py", env={"HF_TOKEN": "hf_secret"}
        )
        assert facts[-1]["env"]["X"] == value
        assert facts[-1]["env"]["HF_TOKEN"] == "hf_secret"  # noqa: S105  no password of anybody
        subprocess.run(["rm", "-r", folder / "run" / "logs"], check=True)
    assert sorted(os.listdir(folder)) == ["facts.py", "run"]
    assert b"hf_secret" not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_cards_by_number_are_not_counted_as_slots(tmp_path: Path):
    (tmp_path / "hosts").write_text("localhost slots=2 devices=2,3\n")
    facts = facts_here(tmp_path, "--hosts", "hosts", "facts.py", env={"HIP_VISIBLE_DEVICES": "0"})
    assert [told["env"]["LOCAL_RANK"] for told in facts] == ["0", "1"]
    assert {told["env"]["HIP_VISIBLE_DEVICES"] for told in facts} == {"2,3"}


def test_cards_that_the_shell_shows_stay_shown(tmp_path: Path):
    (facts,) = facts_here(tmp_path, "--nproc", "1", "facts.py", env={"HIP_VISIBLE_DEVICES": "1"})
    assert facts["env"]["HIP_VISIBLE_DEVICES"] == "1"
    assert (facts["env"]["LOCAL_RANK"], facts["env"]["WORLD_SIZE"]) == ("0", "1")
