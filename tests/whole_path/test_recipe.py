"""The main job: a recipe over real hosts ends with a falling loss, one adapter, ten rows of metrics and nothing left."""

import json
import math
import shutil
import subprocess

import pytest

from tests.train.tiny import wait_until
from tests.whole_path.conftest import ROOT, read_jsonl, write_hosts
from tests.whole_path.node_stack import make_node_python

pytestmark = [pytest.mark.lab, pytest.mark.train]
RECIPE = str(ROOT / "configs" / "lora.yaml")
#: float32 and no dropout: what remains between splits is the order of additions
EXACT = ["train.precision=fp32", "lora.dropout=0", "train.global_batch_size=4", "train.learning_rate=1e-3"]


def losses_of(folder):
    return [row["loss"] for row in read_jsonl(folder / "metrics.jsonl")]


def test_a_recipe_trains_over_two_hosts(lab, lab_path, tiny_model, rows_file):
    names = lab.up(2)
    done = lab.launch(
        ["--hosts", write_hosts(lab_path, names), "--run-dir", "run", RECIPE, f"model.path={tiny_model}",
         f"data.path={rows_file}", "train.max_steps=10", *EXACT],
        cwd=lab_path, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    run = lab_path / "run"
    rows = read_jsonl(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(1, 11))
    losses = [row["loss"] for row in rows]
    assert all(map(math.isfinite, losses))
    assert sum(losses[-3:]) < sum(losses[:3])
    found = sorted(str(path.parent.relative_to(run)) for path in run.rglob("adapter_model.safetensors"))
    assert found == ["adapter", "checkpoints/step-00000010/adapter"]  # the result and the best one
    assert (run / "adapter" / "tokenizer.json").exists()
    assert (run / "loss.png").stat().st_size > 5000
    plan = json.loads((run / "plan.json").read_text())
    assert (plan["world_size"], [node["num_ranks"] for node in plan["nodes"]]) == (4, [2, 2])
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_without_a_target_the_demo_runs_and_needs_no_download(lab, lab_path):
    names = lab.up(2)
    done = lab.launch(
        ["--hosts", write_hosts(lab_path, names), "--run-dir", "run"], cwd=lab_path, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = losses_of(lab_path / "run")
    assert len(losses) == 20
    assert sum(losses[-5:]) <= 0.9 * sum(losses[:5])
    assert "dcu-launch init --model DIR --data FILE" in done.stdout
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_one_two_and_four_ranks_have_the_same_losses(lab, lab_path, tiny_model, rows_file):
    names = lab.up(2)
    losses = {}
    for label, hosts, slots in (("1", names[:1], 1), ("2", names[:1], 2), ("2x2", names, 2)):
        hostfile = write_hosts(lab_path, hosts, slots)
        done = lab.launch(
            ["--hosts", hostfile, "--run-dir", f"run-{label}", RECIPE, f"model.path={tiny_model}",
             f"data.path={rows_file}", "train.max_steps=5", *EXACT],
            cwd=lab_path, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        losses[label] = losses_of(lab_path / f"run-{label}")
    assert len(losses["1"]) == 5
    assert losses["2"] == pytest.approx(losses["1"], rel=1e-4)
    assert losses["2x2"] == pytest.approx(losses["1"], rel=1e-4)


def test_seven_unlike_rows_train_the_same_on_one_rank_and_on_two_hosts(lab, lab_path, tiny_model):
    """Answers of 1 to 200 words of one token: losses, counts and weights after five steps."""
    from safetensors.torch import load_file

    names, file = lab.up(2), lab_path / "unlike.json"
    answers = ["的" * number for number in (1, 190, 5, 20, 60, 2, 90)]
    rows = [{"instruction": f"数{n}", "input": "", "output": answer} for n, answer in enumerate(answers)]
    file.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
    for label, hosts, slots in (("1", names[:1], 1), ("2x2", names, 2)):
        done = lab.launch(
            ["--hosts", write_hosts(lab_path, hosts, slots), "--run-dir", label, RECIPE, f"model.path={tiny_model}",
             f"data.path={file}", "data.eval_fraction=0", "data.max_length=512", "train.max_steps=5", *EXACT],
            cwd=lab_path, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    one, four = (read_jsonl(lab_path / label / "metrics.jsonl") for label in ("1", "2x2"))
    assert [row["rows"] for row in four] == [4, 3, 4, 3, 4]
    assert [row["label_tokens"] for row in four] == [row["label_tokens"] for row in one]
    assert one[0]["label_tokens"] + one[1]["label_tokens"] == one[2]["label_tokens"] + one[3]["label_tokens"]
    assert [row["loss"] for row in four] == pytest.approx([row["loss"] for row in one], rel=1e-5)
    mine, theirs = (
        load_file(lab_path / label / "adapter" / "adapter_model.safetensors") for label in ("1", "2x2")
    )
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert float((theirs[name] - tensor).abs().max()) < 1e-5, name


def test_a_node_with_exactly_the_named_packages_trains(lab, lab_path, tiny_model, rows_file):
    names = lab.up(1)
    python = make_node_python(lab.shared / "node-stack")
    done = lab.launch(
        ["--hosts", write_hosts(lab_path, names), "--python", str(python), "--run-dir", "run", RECIPE,
         f"model.path={tiny_model}", f"data.path={rows_file}", "train.max_steps=2", *EXACT],
        cwd=lab_path, timeout=240,
    )  # fmt: skip
    shutil.rmtree(lab.shared / "node-stack")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(losses_of(lab_path / "run")) == 2
    plan = json.loads((lab_path / "run" / "plan.json").read_text())
    assert plan["nodes"][0]["argv"][0] == str(python)


def test_a_run_goes_on_where_nodes_do_not_share_the_run_folder(lab, lab_path, tiny_model, rows_file):
    """One adapter at the head, equal to the node's; a first node without the checkpoint is refused and not begun anew."""
    names = lab.up(2)
    run_dir = "/tmp/runs/private"

    def launch(hosts, *words):
        return lab.launch(
            ["--hosts", write_hosts(lab_path, hosts, 1), "--run-dir", run_dir, RECIPE, f"model.path={tiny_model}",
             f"data.path={rows_file}", *EXACT, *words],
            cwd=lab_path, timeout=240,
        )  # fmt: skip

    def sums(host):
        done = lab.run(host, ["sh", "-c", f"cd {run_dir} && sha256sum adapter/*"], check=True)
        return dict(reversed(line.split()) for line in done.stdout.strip().splitlines())

    assert launch([names[1], names[0]], "train.max_steps=2").returncode == 0
    assert sums(1) == sums(2)
    assert "adapter/adapter_model.safetensors" in sums(1)
    first = sums(1)

    refused = launch(names, "train.max_steps=4")
    assert refused.returncode == 3
    assert (
        f"run folder {run_dir}: its newest checkpoint, step-00000002, was written by {names[1]}; {names[0]} is the first "
        "node now and does not have it, so the run would begin anew\n"
        f"  hint: put {names[1]} first in the hostfile, or copy {run_dir}/checkpoints/step-00000002 to {names[0]}; "
        "checkpoint.resume=never begins anew\n"
    ) in refused.stderr

    again = launch([names[1], names[0]], "train.max_steps=4")
    assert again.returncode == 0, again.stdout + again.stderr
    assert f"goes on after step 2 of {run_dir}/checkpoints/step-00000002" in again.stdout + again.stderr
    assert sums(1) == sums(2) != first
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_save_and_stop_files_work_where_nodes_do_not_share_the_run_folder(
    lab, lab_path, tiny_model, rows_file
):
    names = lab.up(2)
    run_dir = "/tmp/runs/wishes"
    said = lab_path / "said"

    with said.open("w") as out:
        process = lab.launch_popen(
            ["--hosts", write_hosts(lab_path, [names[1], names[0]], 1), "--run-dir", run_dir, RECIPE,
             f"model.path={tiny_model}", f"data.path={rows_file}", "train.max_steps=100000",
             "checkpoint.keep=9", *EXACT],
            cwd=lab_path, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def events():
        return lab.run(1, ["cat", f"{run_dir}/events.jsonl"], check=True).stdout

    wait_until(lambda: "/100000" in said.read_text())
    lab.run(1, ["touch", f"{run_dir}/SAVE"], check=True)
    wait_until(lambda: '"checkpoint"' in events())
    lab.run(1, ["touch", f"{run_dir}/STOP"], check=True)
    assert process.wait(timeout=60) == 143, said.read_text()
    assert "the file STOP: asking 2 ranks to end" in said.read_text()
    summary = json.loads(lab.run(1, ["cat", f"{run_dir}/summary.json"], check=True).stdout)
    assert (summary["exit"], summary["kind"]) == (143, "stopped")
    assert "stopped by the file STOP" in summary["message"]
    steps = summary["checkpoints"]["names"]
    assert summary["checkpoints"]["host"] == names[1]
    assert len(steps) == 2
    assert all(name in events() for name in steps)
    for name in steps:
        kept = json.loads(
            lab.run(2, ["cat", f"{run_dir}/checkpoints/{name}/manifest.json"], check=True).stdout
        )
        assert kept["world_size"] == 2
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_the_best_adapter_is_at_the_head_while_training_goes_on(lab, lab_path, tiny_model, rows_file):
    names, run_dir = lab.up(2), "/tmp/runs/best"

    def sh(host, text):
        return lab.run(host, ["sh", "-c", f"cd {run_dir} && {text}"], check=True).stdout

    said = lab_path / "said"
    with said.open("w") as out:
        process = lab.launch_popen(
            ["--hosts", write_hosts(lab_path, [names[1], names[0]], 1), "--run-dir", run_dir, RECIPE,
             f"model.path={tiny_model}", f"data.path={rows_file}", "train.max_steps=400", "train.eval_every=20",
             "checkpoint.keep=1", *EXACT],
            cwd=lab_path, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    seen = set()

    def is_over():
        done = lab.run(1, ["sh", "-c", f"cat {run_dir}/checkpoints/best; ls {run_dir}/summary.json"])
        seen.update(line for line in done.stdout.splitlines() if line.startswith("step-") and len(line) == 13)
        return process.poll() is not None

    wait_until(is_over, 240)
    assert process.returncode == 0, said.read_text()
    best = sh(2, "cat checkpoints/best")
    assert sh(1, "cat checkpoints/best") == best
    assert len(seen) > 1, seen  # earlier ones had come while it trained
    assert sh(1, "ls -A checkpoints").split() == ["best", best.strip()]
    assert sh(1, f"ls -A checkpoints/{best.strip()}").split() == ["adapter"]
    sums = f"sha256sum checkpoints/{best.strip()}/adapter/*"
    assert sh(1, sums) == sh(2, sums)
    assert "adapter_model.safetensors" in sh(1, sums)
    assert (
        f"the adapter of the best checkpoint is here: checkpoints/{best.strip()}/adapter" in said.read_text()
    )
    assert sh(1, "sha256sum adapter/*") == sh(2, "sha256sum adapter/*")
    bests = [
        row["data"]
        for row in map(json.loads, sh(1, "cat events.jsonl").splitlines())
        if row["kind"] == "checkpoint"
    ]
    assert [data["path"] for data in bests if data.get("best")][-1] == f"{run_dir}/checkpoints/{best.strip()}"
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)
