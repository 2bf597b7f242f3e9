"""A detached run over two hosts, watched and asked from other processes and other hosts; its head killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time

import pytest

from tests.whole_path.conftest import read_jsonl, write_hosts

pytestmark = [pytest.mark.lab]
WORDS = ["train.max_steps=4000", "train.eval_every=0", "train.save_every=0"]
TALK = "import os, time\nfor n in range(6000):\n    print(n, 'of', os.environ['RANK'], flush=True)\n    time.sleep(0.1)\n"


def detach(lab, folder, *words):
    names = lab.up(2)
    hosts = write_hosts(folder, names, slots=1)
    done = lab.launch(["--hosts", hosts, "--run-dir", "run", "--detach", *words], cwd=folder, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "run goes on in the background: process" in done.stdout
    return json.loads((folder / "run" / "head.json").read_text())


def follow(lab, folder, host, *words):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return lab.launch_popen([*words, str(folder / "run")], host=host, cwd=folder, **pipes)


@pytest.mark.train
def test_a_recipe_is_followed_saved_and_stopped_from_another_host(lab, lab_path):
    head = detach(lab, lab_path, *WORDS)
    assert head["host"] == lab.name(1)
    run = lab_path / "run"
    deadline = time.monotonic() + 60
    while not (run / "metrics.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for host in (1, 2):  # the second one knows the head by the run folder alone
        (row,) = json.loads(lab.launch(["ps", "--json"], host=host, cwd=lab_path, check=True).stdout)
        assert (row["state"], row["ranks"], row["hosts"]) == ("running", 2, [lab.name(1), lab.name(2)])
        assert row["step"] >= 1
        assert 0 < row["loss"] < 12

    with follow(lab, lab_path, 2, "attach") as attached:
        seen, saving = "", None
        while "save asked by root@node002" not in seen or not re.search(r"checkpoint: .*/step-\d+", seen):
            if "step " in seen and saving is None:
                saving = lab.launch(["save", str(run)], host=2, cwd=lab_path)
            seen += attached.stdout.readline()
        attached.send_signal(signal.SIGINT)
        assert "run goes on" in attached.stdout.read()
    assert attached.returncode == 0
    (checkpoint,) = [
        event["data"]["path"] for event in read_jsonl(run / "events.jsonl") if event["kind"] == "checkpoint"
    ]
    assert saving is not None
    assert saving.returncode == 0, saving.stderr
    assert saving.stdout.endswith(f"checkpoint {checkpoint}\n")
    assert (run / "checkpoints" / os.path.basename(checkpoint) / "manifest.json").exists()

    done = lab.launch(["stop", str(run)], host=2, cwd=lab_path)
    assert done.returncode == 0, done.stderr
    assert "run is stopped, exit code 143: stopped by dcu-launch stop (root@node002)" in done.stdout
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_a_killed_head_is_dead_from_every_host_and_nothing_is_left(lab, lab_path):
    (lab_path / "talk.py").write_text(TALK)
    head = detach(lab, lab_path, "talk.py")
    with follow(lab, lab_path, 2, "logs", "-f") as following:
        # its first lines are the last ten of then: on a busy machine the run is past any given number
        while not re.match(r"\[node002:1\] \d+ of 1$", following.stdout.readline()):
            assert following.poll() is None
        (process,) = [entry for entry in lab.processes(1) if entry.pid == head["pid"]]
        process.kill()
        following.stdout.read()
    assert following.returncode == 0  # its run has ended
    for host in (1, 2):
        lab.wait_gone(host, within_s=15)
        done = lab.launch(["ps"], host=host, cwd=lab_path)
        assert re.search(r"^run +dead \(5\)", done.stdout, re.M), done.stdout
        assert f"run: dead: its head, process {head['pid']} on node001, is gone without a word" in done.stdout
    done = lab.launch(["stop", "run"], host=2, cwd=lab_path)
    assert (done.returncode, "does not run any more, it is dead" in done.stderr) == (2, True)
