"""``dcu-launch submit`` on a real Slurm: a run over two nodes, the time limit, arrays, cards, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.slurm.slurm_lab import SlurmLab, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.train]
RUN = ["submit", "--run-dir", "run"]
TWO_BY_TWO = ["--nodes", "2", "--cards", "2", "--cpus-per-card", "2"]
STEPS = "train.max_steps=14"
#: the lab's cards are made up
RECIPE = [*TWO_BY_TWO, "--allow", "TORCH_HCU_UNAVAILABLE"]


def submit(
    slurm: SlurmLab, folder: Path, *words: str, env: dict[str, str] | None = None, timeout: float = 240
) -> Any:
    return slurm.lab.launch([*RUN, *words], cwd=folder, timeout=timeout, env=env)


def number_of(done: Any) -> int:
    found = re.search(r"job (\d+) submitted", done.stdout)
    assert found, done.stdout + done.stderr
    return int(found[1])


def losses(folder: Path) -> dict[int, float]:
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().split("\n") if line] if path.exists() else []
    return {row["step"]: row["loss"] for row in rows}


def said(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("run.slurm/out-*.txt"))


@pytest.fixture(scope="module")
def unbroken(slurm_session: SlurmLab) -> Iterator[tuple[Any, Path]]:
    """A run of two nodes by two ranks that nobody stopped: what submit said, and the folder."""
    folder = slurm_session.lab.shared / "unbroken"
    folder.mkdir()
    yield submit(slurm_session, folder, *RECIPE, "--time", "10", "--follow", STEPS), folder
    shutil.rmtree(folder)


def test_two_nodes_by_two_ranks_end_completed_with_a_falling_loss_and_one_adapter(unbroken, slurm):
    done, folder = unbroken
    assert done.returncode == 0, done.stdout + done.stderr + said(folder)
    assert slurm.job(number_of(done))["JobState"] == "COMPLETED"
    found = losses(folder / "run")
    values = [found[step] for step in range(1, 15)]
    assert all(map(math.isfinite, values))
    assert sum(values[-3:]) < sum(values[:3])
    assert len(list((folder / "run").rglob("adapter/adapter_model.safetensors"))) == 1
    plan = json.loads((folder / "run" / "plan.json").read_text())
    assert [(node["host"], node["num_ranks"]) for node in plan["nodes"]] == [
        (name, 2) for name in slurm.names[:2]
    ]
    assert "RUNNING on node[001-002]" in done.stdout
    assert re.search(r"step 14(/14)? +loss", done.stdout)


def test_usr1_saves_slurm_starts_it_again_and_the_losses_are_those_of_an_unbroken_run(
    unbroken, slurm, slurm_path
):
    job = number_of(submit(slurm, slurm_path, *RECIPE, "--time", "10", STEPS))
    wait_for(lambda: len(losses(slurm_path / "run")) >= 3, 90, lambda: said(slurm_path))
    # what Slurm does before the time limit; its own clock counts in minutes
    slurm.run(["scancel", "--batch", "--signal=USR1", str(job)])
    wait_for(lambda: slurm.job(job)["Restarts"] == "1", 60, lambda: said(slurm_path), 0.3)
    # nothing runs now, and yet it is not over: Slurm lets two minutes pass
    to_come = f"Slurm's job {job} (PENDING) goes on with it; scancel {job} ends that"
    for words in (["stop"], ["stop", "run"]):
        done = slurm.lab.launch(words, cwd=slurm_path)
        assert (done.returncode, to_come in done.stderr) == (2, True), done.stderr
    assert re.search(rf"^run: interrupted: .*; {re.escape(to_come)}$", slurm.lab.launch(["ps"]).stdout, re.M)
    state = slurm.wait_state(job, "COMPLETED", "FAILED", "CANCELLED", within_s=150)
    told = said(slurm_path)
    assert state == "COMPLETED", told
    assert told.count("asked Slurm to start this job again") == 1
    saved = int(re.search(r"step (\d+) is saved", told)[1])
    assert 3 <= saved < 14
    assert f"goes on after step {saved} of" in told
    # what remains is the order in which gloo adds up four ranks
    assert losses(slurm_path / "run") == pytest.approx(losses(unbroken[1] / "run"), rel=1e-5)


FACTS = """\
import json, os, socket, sys
print(json.dumps({"host": socket.gethostname(), "argv": sys.argv[1:], "cards": os.environ.get("HIP_VISIBLE_DEVICES"),
                  "values": [os.environ.get(name) for name in ("NCCL_IB_HCA", "ODD", "GONE")]}))
"""


def facts(folder: Path) -> list[dict[str, Any]]:
    return [
        json.loads(log.read_text()) for log in sorted(folder.glob("logs/*/*.log"), key=lambda log: log.name)
    ]


def test_values_and_arguments_arrive_whole_and_each_task_of_an_array_has_its_own_folder(slurm, slurm_path):
    (slurm_path / "show.py").write_text(FACTS)
    odd = 'it\'s "a, b"\n$HOME `x`'
    done = submit(
        slurm, slurm_path, "--array", "2,5", "--cards", "1", "--cpus-per-card", "2", "--env", f"ODD={odd}",
        "--env", "GONE-", "show.py", "{task}", "a, 'b'", "", env={"NCCL_IB_HCA": "shca_0:1,shca_1:1", "GONE": "x"},
    )  # fmt: skip
    job = number_of(done)
    for task in (2, 5):
        state = slurm.wait_state(f"{job}_{task}", "COMPLETED", "FAILED")
        assert state == "COMPLETED", said(slurm_path)
        (fact,) = facts(slurm_path / f"run-{task}")
        assert fact["argv"] == [str(task), "a, 'b'", ""]
        assert fact["values"] == ["shca_0:1,shca_1:1", odd, None]


def test_a_rank_that_fails_makes_the_job_fail_with_its_code(slurm, slurm_path):
    (slurm_path / "fail.py").write_text("import sys; sys.exit(7)\n")
    done = submit(slurm, slurm_path, *TWO_BY_TWO, "--follow", "fail.py")
    assert done.returncode == 7, done.stdout + done.stderr
    assert slurm.job(number_of(done))["JobState"] == "FAILED"


def test_term_to_the_batch_shell_ends_the_job_and_does_not_start_it_again(slurm, slurm_path):
    (slurm_path / "wait.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    job = number_of(submit(slurm, slurm_path, *TWO_BY_TWO, "--checkpoints", "c", "wait.py"))
    wait_for(lambda: "up" in said(slurm_path), 60, lambda: said(slurm_path))
    slurm.run(["scancel", "--batch", "--signal=TERM", str(job)])
    assert slurm.wait_state(job, "FAILED", "CANCELLED", "COMPLETED", within_s=30) == "FAILED"
    assert (slurm.job(job)["ExitCode"], slurm.job(job)["Restarts"]) == ("143:0", "0")
    assert json.loads((slurm_path / "run" / "summary.json").read_text())["kind"] == "stopped"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--gres", "card"], "--gres"),
        (["--partition", "nowhere"], "sinfo -s"),
        (["--nodelist", "nowhere"], "sinfo -N"),
    ],
)
def test_a_refusal_of_slurms_names_a_cure(slurm, slurm_path, words, hint):
    done = submit(slurm, slurm_path, *words)
    assert (done.returncode, "sbatch refuses the job" in done.stderr, hint in done.stderr) == (
        2,
        True,
        True,
    ), done.stderr


def test_a_job_that_no_partition_can_hold_is_told_at_once(slurm, slurm_path):
    (slurm_path / "show.py").write_text("print('up')\n")
    done = submit(slurm, slurm_path, "--nodes", "9", "--cards", "1", "--cpus-per-card", "2", "show.py")
    job = number_of(done)
    assert done.returncode == 0
    assert re.search(
        rf"^dcu-launch: warning: job {job} waits \(Partition(Config|NodeLimit)\): partition dcu (has|gives a job) "
        rf"fewer nodes.*\n  hint: fewer --nodes.*; scontrol show partition dcu; scancel {job} takes the job back$",
        done.stderr, re.M,
    ), done.stderr  # fmt: skip
    slurm.run(["scancel", str(job)])
    fits = submit(slurm, slurm_path, "--nodes", "4", "--cards", "1", "--cpus-per-card", "2", "show.py")
    assert (fits.returncode, "warning" in fits.stderr) == (0, False), fits.stderr
    assert slurm.wait_state(number_of(fits), "COMPLETED", "FAILED") == "COMPLETED", said(slurm_path)


@pytest.mark.soak
def test_the_time_limit_itself(slurm, slurm_path):
    """Slurm's own clock: a limit of two minutes, the signal some 40 s before it."""
    done = submit(
        slurm, slurm_path, *RECIPE, "--time", "2", "--save-before-limit", "40", "--follow",
        "train.max_steps=400", timeout=900,
    )  # fmt: skip
    told = said(slurm_path)
    assert done.returncode == 0, done.stdout + done.stderr + told
    restarts = int(slurm.job(number_of(done))["Restarts"])
    assert restarts >= 1
    assert told.count("asked Slurm to start this job again") == restarts
    assert sorted(losses(slurm_path / "run")) == list(range(1, 401))
