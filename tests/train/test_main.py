"""Ranks from the outside: the agent's channel, mistakes, signals, and what is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from launcher.base.config import config_hash
from tests.train.tiny import ROOT, free_port, rank_variables, recipe, wait_until

pytestmark = pytest.mark.train


class Agent:
    """The agent's end of one rank's channel."""

    def __init__(self, variables: dict[str, str] | None = None) -> None:
        ours, theirs = socket.socketpair()
        start = "import sys; from launcher.train.main import main; sys.exit(main())"
        self.rank = subprocess.Popen(
            [sys.executable, "-c", start], pass_fds=[theirs.fileno()], cwd=ROOT, text=True,
            env={**os.environ, **(variables or {}), "DCU_LAUNCH_CHANNEL": str(theirs.fileno())},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        theirs.close()
        ours.settimeout(60)
        self._sock, self._lines = ours, ours.makefile("r", encoding="utf-8", newline="\n")

    def send(self, **order: Any) -> None:
        self._sock.sendall((json.dumps(order) + "\n").encode())

    def send_recipe(self, config: dict[str, Any], run_dir: Path) -> None:
        self.send(
            kind="recipe",
            config=config,
            config_hash=config_hash(config),
            run_dir=str(run_dir),
            run="r",
            attempt=0,
        )

    def receive(self, kind: str) -> dict[str, Any]:
        for line in self._lines:
            event = json.loads(line)
            if event["kind"] == kind:
                return event
        raise AssertionError(f"no {kind} before the end: {self.rank.communicate()[0]}")

    def rest(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines]

    def end(self) -> tuple[int, str]:
        try:
            output = self.rank.communicate(timeout=60)[0]
        finally:
            self.rank.kill()
            self._lines.close()
            self._sock.close()
        return self.rank.returncode, output


def test_the_channel_carries_orders_in_and_events_out(model_dir, rows_file, tmp_path):
    agent = Agent()
    agent.send_recipe(recipe(model_dir, rows_file, train={"max_steps": 2}), tmp_path / "run")
    ready = agent.receive("rank_ready")["data"]
    assert ready["operation"] == {"cpu": ""}
    assert (ready["available"], ready["device_count"], ready["hip"]) == (False, 0, None)
    assert ready["version"].startswith("2.")
    agent.send(kind="go")
    events = agent.rest()
    assert agent.end()[0] == 0
    metrics = [event for event in events if event["kind"] == "metric"]
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [{"step": event["step"], **event["data"]} for event in metrics] == rows
    assert {"loss", "lr", "grad_norm", "tokens", "tokens_per_s", "epoch", "step_s"} <= rows[0].keys()
    assert [event["step"] for event in metrics] == [1, 2]
    kinds = {event["kind"] for event in events}
    assert kinds == {"note", "metric", "checkpoint", "result"}
    assert next(e for e in events if e["kind"] == "result")["data"]["path"] == str(
        tmp_path / "run" / "adapter"
    )


def test_nothing_happens_before_go(model_dir, rows_file, tmp_path):
    agent = Agent(rank_variables(0, 1, free_port()))
    agent.send_recipe(recipe(model_dir, rows_file), tmp_path / "run")
    agent.receive("rank_ready")
    time.sleep(0.5)
    assert agent.rank.poll() is None
    assert not (tmp_path / "run").exists()
    agent.rank.terminate()
    assert agent.end()[0] == 143


def test_a_recipe_that_changed_on_its_way_is_refused(model_dir, rows_file, tmp_path):
    agent = Agent()
    agent.send(
        kind="recipe",
        config=recipe(model_dir, rows_file),
        config_hash="0" * 64,
        run_dir="/x",
        run="r",
        attempt=0,
    )
    code, output = agent.end()
    assert code == 2
    assert "changed on its way" in output


def test_save_and_stop_come_at_the_border_of_a_step(model_dir, rows_file, tmp_path):
    agent = Agent()
    agent.send_recipe(recipe(model_dir, rows_file, train={"max_steps": 10_000}), tmp_path / "run")
    agent.send(kind="go")
    agent.receive("metric")
    agent.send(kind="save")
    saved = agent.receive("checkpoint")
    assert saved["data"]["path"].endswith(f"step-{saved['step']:08d}")
    agent.send(kind="stop")
    stopped = agent.receive("checkpoint")
    assert stopped["step"] > saved["step"]
    assert agent.end()[0] == 143


def test_sigterm_to_one_rank_saves_and_ends_all(ranks, model_dir, rows_file, tmp_path):
    config = recipe(model_dir, rows_file, train={"max_steps": 10_000}, checkpoint={"keep": 5})
    started = ranks.start(config, tmp_path / "run", 2)
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 2)
    started[1].kill(signal.SIGTERM)
    ran = ranks.wait(started, tmp_path / "run")
    assert ran.codes == [143, 143], ran.outputs
    last = ran.metrics[-1]["step"]
    assert [p.name for p in sorted((tmp_path / "run" / "checkpoints").iterdir())] == [
        "latest",
        f"step-{last:08d}",
    ]
    assert not (tmp_path / "run" / "adapter").exists()


#: rank 1 is asked to end while the second of many parts of step 2's rows held back is measured
ENDED_WHILE_MEASURING = """
import os, signal
import launcher.train.loop as loop
loop._EVAL_ROWS = 1
real, parts = loop.evaluate, []
def evaluate(setup, progress):
    plan, parts[:] = loop.plan_step, []
    def spied_plan(rows, *rest):
        parts.append(rows)
        if (progress.step, len(parts), os.environ["RANK"]) == (2, 2, "1"):
            os.kill(os.getpid(), signal.SIGTERM)
        return plan(rows, *rest)
    loop.plan_step = spied_plan
    try:
        return real(setup, progress)
    finally:
        loop.plan_step = plan
        print("step", progress.step, "measured", len(parts), "parts", flush=True)
loop.evaluate = evaluate
"""


def test_sigterm_in_the_middle_of_an_evaluation_saves_and_loses_nothing(
    ranks, model_dir, rows_file, tmp_path
):
    config = recipe(
        model_dir, rows_file, data={"eval_fraction": 0.4}, train={"max_steps": 4, "eval_every": 1}
    )
    ended = ranks.end(config, tmp_path / "run", 2, code=ENDED_WHILE_MEASURING)
    assert ended.codes == [143, 143], ended.outputs
    for output in ended.outputs:
        assert "step 2 measured 2 parts" in output
        assert "step 1 measured 2 parts" not in output
    assert ["eval_loss" in row for row in ended.metrics] == [True, False]
    ran = ranks.train(config, tmp_path / "run", 2)
    unbroken = ranks.train(config, tmp_path / "unbroken", 2)
    assert [row["step"] for row in ran.metrics] == [1, 2, 3, 4]
    assert [row["loss"] for row in ran.metrics] == pytest.approx([row["loss"] for row in unbroken.metrics])
    assert ran.metrics[-1]["eval_loss"] == pytest.approx(unbroken.metrics[-1]["eval_loss"])


def test_a_mistake_is_told_once_in_one_line_with_its_cure(ranks, model_dir, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"instruction": "a"}\n')
    ran = ranks.end(recipe(model_dir, bad), tmp_path / "run", 2)
    assert ran.codes == [2, 2]
    assert ran.outputs == [
        f"dcu-launch: error: {bad}:1: output: expected text, found nothing\n"
        "  hint: mend the rows, or leave them out with data.on_bad_row=skip\n",
        "",
    ]


#: makes packages look as if they were not installed
BLOCK = """
import sys
sys.modules.update(dict.fromkeys({names}))
from launcher.train.main import main
sys.exit(main(sys.argv[1:]))
"""
HEAD_ONLY = [
    "omegaconf",
    "rich",
    "click",
    "matplotlib",
    "fabric",
    "ClusterShell",
    "paramiko",
    "invoke",
    "deepspeed",
]


def run_without(names: list[str], config: dict[str, Any], run_dir: Path) -> subprocess.CompletedProcess[str]:
    """One rank in a process of its own, where some packages are not to be had; no torchrun's variables."""
    file = run_dir.with_suffix(".json")
    file.write_text(json.dumps(config))
    words = [
        sys.executable,
        "-c",
        BLOCK.format(names=names),
        "--config",
        str(file),
        "--run-dir",
        str(run_dir),
    ]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_missing_paths_are_told_before_anything_is_imported(tmp_path):
    ran = run_without(["torch"], recipe(tmp_path / "no-model", tmp_path / "no-rows.json"), tmp_path / "run")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines() == [
        f"dcu-launch: error: model.path: {tmp_path / 'no-model'} is not there",
        f"dcu-launch: error: data.path: {tmp_path / 'no-rows.json'} is not there",
        "  hint: every node must see model and rows under these paths; from another folder, give them whole",
    ]


def test_ranks_need_nothing_of_the_heads(model_dir, rows_file, tmp_path):
    config = recipe(model_dir, rows_file, train={"max_steps": 1})
    ran = run_without(HEAD_ONLY, config, tmp_path / "run")
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()
    assert ran.stderr == ""


def test_a_rank_that_fails_alone_leaves_a_traceback_and_code_1(ranks, model_dir, rows_file, tmp_path):
    code = "import launcher.train.loop as loop; loop.run_step = lambda *a: 1 / 0"
    ran = ranks.end(recipe(model_dir, rows_file), tmp_path / "run", code=code)
    assert ran.codes == [1]
    assert ran.outputs[0].rstrip().endswith("ZeroDivisionError: division by zero")


def test_ranks_with_unlike_recipes_are_refused(ranks, model_dir, rows_file, tmp_path):
    other = recipe(model_dir, rows_file, train={"seed": 5})
    ran = ranks.end(recipe(model_dir, rows_file), tmp_path / "run", 2, others={1: other})
    assert ran.codes == [2, 2]
    assert "ranks [1] have another recipe than rank 0" in ran.outputs[0]


def test_a_loss_that_is_no_number_stops_with_rank_and_step(ranks, model_dir, rows_file, tmp_path):
    code = (
        "import os, launcher.train.loss as loss; real = loss.Objective.forward; loss.Objective.forward = "
        "lambda self, batch: real(self, batch) * (float('inf') if os.environ['RANK'] == '1' else 1.0)"
    )
    ran = ranks.end(recipe(model_dir, rows_file, train={"max_steps": 2}), tmp_path / "run", 2, code=code)
    assert ran.codes == [1, 1]
    assert "NonFiniteError: step 1: the loss of rank 1 is inf" in ran.outputs[0]


def test_such_steps_are_left_out_by_policy_and_never_the_best(ranks, model_dir, rows_file, tmp_path):
    code = (
        "import launcher.train.loss as loss; real = loss.Objective.forward; "
        "loss.Objective.forward = lambda self, batch: real(self, batch) * float('nan')"
    )
    config = recipe(
        model_dir, rows_file, train={"max_steps": 2, "on_nonfinite": "skip"}, data={"eval_fraction": 0.2}
    )
    ran = ranks.train(config, tmp_path / "run", code=code)
    assert "step 1 is left out: the loss of rank 0 is nan" in ran.outputs[0]
    assert [row["loss"] for row in ran.metrics] == [None, None]
    assert not (tmp_path / "run" / "checkpoints" / "best").exists()


def test_copies_that_would_train_apart_are_found(ranks, model_dir, rows_file, tmp_path):
    # what Accelerate 1.15 says on CPUs with torchrun's variables alone
    code = (
        "import accelerate, types; accelerate.Accelerator = lambda **kwargs: "
        "types.SimpleNamespace(process_index=0, num_processes=1, is_main_process=True)"
    )
    ran = ranks.end(recipe(model_dir, rows_file), tmp_path / "run", 2, code=code)
    assert ran.codes == [1, 1]
    assert "the ranks would train apart: Accelerate says rank 0 of 1" in ran.outputs[1]


def test_a_tokenizer_that_is_read_in_another_way_than_its_file_says_is_warned_of(model_dir, monkeypatch):
    from launcher.train.model import check_tokenizer, load_tokenizer

    tokenizer = load_tokenizer(str(model_dir))
    assert check_tokenizer(str(model_dir), tokenizer) == ""
    monkeypatch.setattr(type(tokenizer), "__call__", lambda self, text, **options: {"input_ids": [1]})
    assert "makes other tokens of a text than its tokenizer.json does" in check_tokenizer(
        str(model_dir), tokenizer
    )


def test_half_precision_trains_packed_rows_about_as_float32(ranks, model_dir, rows_file, tmp_path):
    losses = {}
    for name in ("fp32", "bf16"):
        config = recipe(model_dir, rows_file, train={"precision": name})
        losses[name] = ranks.train(config, tmp_path / name, 2).losses
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=5e-3)
    assert losses["bf16"] != losses["fp32"]
