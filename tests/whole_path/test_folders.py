"""Hosts that do not see each other's disks: code goes there by --sync, the result comes back whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.whole_path.facts import read_facts, write_script

pytestmark = pytest.mark.lab

SAVES = """\
import hashlib, json, os, sys
run_dir = sys.argv[1]
if os.environ["RANK"] == "0":
    data = os.urandom(3_000_000)
    for name in ("adapter/sub", "checkpoints/step-00000002"):
        os.makedirs(os.path.join(run_dir, name))
    for name, content in (("adapter_model.safetensors", data), ("sub/tokenizer.json", b"{}"), ("empty", b"")):
        with open(os.path.join(run_dir, "adapter", name), "wb") as file:
            file.write(content)
    listed = {"adapter_model.safetensors": {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}}
    with open(os.path.join(run_dir, "adapter", "manifest.json"), "w") as file:
        json.dump({"files": listed}, file)
print("rank", os.environ["RANK"], "done")
"""


def launch(lab, folder: Path, hosts: list[str], *words, code: int = 0, **run):
    (folder / "hosts").write_text("".join(f"{name} slots=1\n" for name in hosts))
    done = lab.launch(["--hosts", folder / "hosts", *words], **{"cwd": folder, "timeout": 60, **run})
    assert done.returncode == code, done.stdout + done.stderr
    return done


def hashes(lab, host: int, folder: str) -> dict[str, str]:
    listed = lab.run(
        host, ["sh", "-c", f"cd '{folder}' && find . -type f -exec sha256sum {{}} +"], check=True
    ).stdout
    return {name: digest for digest, name in (line.split(None, 1) for line in listed.strip().split("\n"))}


def test_result_comes_from_the_first_node_to_the_head(lab, lab_path: Path):
    names = lab.up(2)
    (lab_path / "saves.py").write_text(SAVES)
    run_dir = "/tmp/runs/one"
    done = launch(lab, lab_path, [names[1], names[0]], "--run-dir", run_dir, "saves.py", run_dir)
    there, here = hashes(lab, 2, f"{run_dir}/adapter"), hashes(lab, 1, f"{run_dir}/adapter")
    assert len(here) == 4
    assert here == there
    logs = hashes(lab, 1, f"{run_dir}/logs")
    assert logs == {
        f"./{name}/rank-0000{rank}.log": hashlib.sha256(f"rank {rank} done\n".encode()).hexdigest()
        for rank, name in enumerate([names[1], names[0]])
    }
    summary = json.loads(lab.run(1, ["cat", f"{run_dir}/summary.json"], check=True).stdout)
    assert summary["exit"] == 0
    assert summary["checkpoints"] == {
        "host": names[1], "path": f"{run_dir}/checkpoints", "names": ["step-00000002"]
    }  # fmt: skip
    assert f"checkpoints stay on {names[1]}: {run_dir}/checkpoints" in done.stdout
    assert lab.run(1, ["ls", f"{run_dir}/checkpoints"]).returncode != 0
    for host in (1, 2):
        lab.wait_gone(host, within_s=9)


def test_node_that_cannot_make_the_run_folder(lab, lab_path: Path):
    names = lab.up(2)
    (lab_path / "saves.py").write_text(SAVES)
    lab.run(2, ["sh", "-c", "mkdir -p /tmp/runs && touch /tmp/runs/two"], check=True)
    done = launch(lab, lab_path, names, "--run-dir", "/tmp/runs/two", "saves.py", "/tmp/runs/two", code=3)
    assert f"RUN_DIR_NOT_WRITABLE: {names[1]}: run folder /tmp/runs/two: File exists" in done.stderr


def test_code_is_brought_to_hosts_that_lack_it(lab, lab_path: Path):
    names = lab.up(2)
    project = "/tmp/my project"
    lab.run(1, ["mkdir", "-p", f"{project}/pkg", f"{project}/.git"], check=True)
    for name, text in (
        ("facts.py", "import pkg.m\n" + (lab_path / write_script(lab_path)).read_text()),
        ("pkg/m.py", "VERSION = 1\n"), (".git/HEAD", "x"), ("big.bin", "x" * 1000), (".dcuignore", "*.bin\n"),
    ):  # fmt: skip
        lab.run(1, ["tee", f"{project}/{name}"], input=text, check=True)
    words = ["--sync", ".", "--run-dir", lab_path / "run", "facts.py"]
    done = launch(lab, lab_path, names, *words, cwd=project)
    assert f"brought {project} (3 files, 0.0 MiB packed) to {names[1]}" in done.stderr
    assert {facts["cwd"] for facts in read_facts(lab_path / "run")} == {project}
    brought = hashes(lab, 2, project)
    assert {name for name in brought if "__pycache__" not in name} == {
        "./facts.py", "./pkg/m.py", "./.dcuignore", "./.dcu-launch-sync.json"
    }  # fmt: skip
    assert ".dcu-launch" not in lab.run(1, ["ls", "-A", project], check=True).stdout

    assert "brought" not in launch(lab, lab_path, names, *words, cwd=project).stderr
    lab.run(1, ["tee", f"{project}/pkg/m.py"], input="VERSION = 2\n", check=True)
    assert "brought" in launch(lab, lab_path, names, *words, cwd=project).stderr
    assert hashes(lab, 2, project)["./pkg/m.py"] == hashlib.sha256(b"VERSION = 2\n").hexdigest()


def test_code_is_brought_to_another_place(lab, lab_path: Path):
    names = lab.up(2)
    write_script(lab_path)
    lab.run(2, ["sh", "-c", "mkdir -p /tmp/theirs && touch /tmp/theirs/thesis.tex"], check=True)
    words = ["--sync", lab_path, "--run-dir", "run", "facts.py"]
    done = launch(lab, lab_path, names, "--workdir", "/tmp/theirs", *words, code=3)
    assert f"{names[1]}: --sync: /tmp/theirs: exists and was not brought by --sync" in done.stderr
    assert lab.run(2, ["ls", "/tmp/theirs"], check=True).stdout == "thesis.tex\n"
    launch(lab, lab_path, names, "--workdir", "/tmp/code", *words)
    assert {facts["cwd"] for facts in read_facts(lab_path / "run")} == {"/tmp/code"}
