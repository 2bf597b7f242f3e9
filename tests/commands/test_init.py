"""``dcu-launch init``: files that load at once, nothing overwritten, and recipes that an installed package brings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from launcher.base.recipe import load_recipe
from launcher.base.shipped import shipped_recipes
from launcher.commands.starter import fill_recipe, write_batch_script, write_hostfile
from launcher.hosts.hostfile import read_hostfile
from launcher.slurm.cluster import Cluster

DCU_LAUNCH = Path(sys.executable).parent / "dcu-launch"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin")
    return tmp_path


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([DCU_LAUNCH, *words], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_each_recipe_is_filled_in_and_loads(name, folder):
    original = load_recipe(ROOT / "configs" / f"{name}.yaml", ["model.path=/m x", "data.path=a: b"])
    text = fill_recipe(shipped_recipes()[name].read_text(), "/m x", "a: b")
    (folder / "dcu-launch.yaml").write_text(text)
    assert load_recipe("dcu-launch.yaml") == original
    assert text.count("path:") == 2


def test_places_left_open_are_told_with_their_lines(folder):
    assert "first fill in dcu-launch.yaml: model.path and data.path" in run("init").stdout
    ran = run("--dry-run")
    assert ran.returncode == 2
    told = ran.stderr
    lines = (folder / "dcu-launch.yaml").read_text().splitlines()
    for section in ("model", "data"):
        line = lines.index(f"{section}:") + 2
        assert f"dcu-launch.yaml:{line}: {section}.path: not given" in told


def test_what_was_written_runs_as_the_last_line_says(folder):
    (folder / "my model").mkdir()
    out = run("init", "new folder", "--recipe", "smoke", "--model", "my model", "--data", "demo").stdout
    assert out.splitlines()[-1] == (
        "dcu-launch: try it: cd 'new folder' && dcu-launch --hosts hosts.txt train.max_steps=20"
    )
    recipe = load_recipe("new folder/dcu-launch.yaml")
    assert (recipe["model"]["path"], recipe["data"]["path"]) == (str(folder / "my model"), "demo")
    (host,) = read_hostfile("new folder/hosts.txt")
    assert host.name == "localhost"
    assert host.slots is not None
    assert host.slots >= 1


def test_nothing_is_overwritten_without_force(folder):
    (folder / "hosts.txt").write_text("mine\n")
    ran = run("init")
    assert ran.returncode == 2
    assert ran.stderr == (
        "dcu-launch: error: .: there already: hosts.txt\n  hint: --force overwrites; or name another folder\n"
    )
    assert sorted(path.name for path in folder.iterdir()) == ["hosts.txt"]
    assert run("init", "--force").returncode == 0
    assert "localhost" in (folder / "hosts.txt").read_text()


def test_recipes_are_listed_and_an_unknown_one_is_refused():
    lines = run("init", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == list(shipped_recipes())
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())  # whole sentences, folded
    assert "..." not in text
    assert "all below them stay as they are and cost no backward work full" in text
    ran = run("init", "--recipe", "qlora")
    assert (ran.returncode, "--recipe qlora: expected one of freeze, full" in ran.stderr) == (2, True)


CLUSTER = Cluster("dcu", False, "dcu", {"n1": (4, 64), "n2": (4, 64), "big3": (8, 128)}, "30:00")


def test_nodes_of_a_cluster_fold_by_their_cards(folder):
    (folder / "hosts.txt").write_text(write_hostfile(CLUSTER, None))
    hosts = read_hostfile("hosts.txt")
    assert [(host.name, host.slots) for host in hosts] == [("n1", 4), ("n2", 4), ("big3", 8)]
    assert "n[1-2] slots=4\n" in (folder / "hosts.txt").read_text()


def test_the_batch_script_asks_for_what_the_nodes_have():
    lines = write_batch_script(CLUSTER).splitlines()
    for line in ("--partition=dcu", "--nodes=2", "--gres=dcu:4", "--cpus-per-task=32", "--time=30:00"):
        assert f"#SBATCH {line}" in lines
    assert lines[-1] == "exec dcu-launch --run-dir runs/train dcu-launch.yaml"
    alone = Cluster("cpu", True, "", {"n1": (0, 4)}, "12:00:00")
    lines = write_batch_script(alone).splitlines()
    assert "#SBATCH --nodes=1" in lines
    assert not any("gres" in line or "partition" in line for line in lines)


def test_an_installed_package_brings_the_recipes(folder):
    source = folder / "source"  # building leaves folders behind
    for name in ("launcher", "configs"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    words = [
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(source),
    ]
    subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True)
    (wheel,) = folder.glob("dcu_launch-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {Path(name).stem for name in archive.namelist() if name.startswith("launcher/recipes/")}
        lora = archive.read("launcher/recipes/lora.yaml")
    assert names == set(shipped_recipes())
    assert lora == (ROOT / "configs" / "lora.yaml").read_bytes()
