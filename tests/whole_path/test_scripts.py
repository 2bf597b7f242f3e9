"""Scripts written for torchrun, Accelerate or one card run unchanged, and use the whole world across hosts."""

import json
import subprocess
import sys
import time

import pytest

from tests.whole_path.conftest import ROOT, json_objects, rank_logs, write_hosts

EXAMPLES = ROOT / "examples"
pytestmark = [pytest.mark.lab, pytest.mark.train]


def launch(lab, folder, *words):
    names = lab.up(2)
    done = lab.launch(
        ["--hosts", write_hosts(folder, names), "--run-dir", "run", *words], cwd=folder, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)
    return [json_objects(log) for log in rank_logs(folder / "run")], done


def test_a_torchrun_script_meets_across_hosts(lab, lab_path):
    facts, _ = launch(lab, lab_path, str(EXAMPLES / "allreduce.py"))
    assert [(fact["rank"], fact["world_size"], fact["sum"]) for (fact,) in facts] == [
        (n, 4, 10.0) for n in range(4)
    ]
    assert [fact["host"] for (fact,) in facts] == [lab.name(1)] * 2 + [lab.name(2)] * 2


def test_ranks_meet_at_a_store_of_an_import_process_that_cannot_be_forked(lab, lab_path):
    """As on nodes with a card, where the import leaves threads behind: the store stays, the ranks start anew."""
    (lab_path / "sitecustomize.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    words = ["--start", "fork", "--env", f"PYTHONPATH={lab_path}", str(EXAMPLES / "allreduce.py")]
    facts, done = launch(lab, lab_path, *words)
    assert [(fact["rank"], fact["sum"]) for (fact,) in facts] == [(n, 10.0) for n in range(4)]
    assert (
        "ranks start as processes of their own: 2 threads run after the import" in done.stdout + done.stderr
    )


def test_an_import_process_that_dies_on_the_first_node_is_told_at_once(lab, lab_path):
    """Ranks of the second host would wait at its store until --start-timeout."""
    names = lab.up(2)
    (lab_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if 'launcher.node.importer' in ' '.join(sys.orig_argv) and os.uname().nodename == {names[0]!r}:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    words = ["--hosts", write_hosts(lab_path, names), "--run-dir", "run", "--start", "fork", "--env",
             f"PYTHONPATH={lab_path}", str(EXAMPLES / "allreduce.py")]  # fmt: skip
    begun = time.monotonic()
    done = lab.launch(words, cwd=lab_path, timeout=60)
    assert time.monotonic() - begun < 20
    assert done.returncode == 127, done.stdout + done.stderr
    assert f"rank 0 on {names[0]} failed: not started\n" in done.stderr
    assert "--start fork: the import process ended (SIGKILL), which was to host the store" in done.stderr
    assert "hint: the process that imports the training stack once" in done.stderr
    assert "--start spawn has each rank import it" in done.stderr
    summary = json.loads((lab_path / "run" / "summary.json").read_text())
    assert {key: summary[key] for key in ("exit", "origin", "kind", "host", "rank")} == {
        "exit": 127, "origin": "rank", "kind": "rank_failed", "host": names[0], "rank": 0,
    }  # fmt: skip
    for host in (1, 2):
        lab.wait_gone(host, within_s=6)


def test_an_accelerate_script_is_one_world_on_cpu(lab, lab_path):
    facts, _ = launch(lab, lab_path, str(EXAMPLES / "accelerate_loop.py"), "--steps", "5")
    assert [(fact["rank"], fact["world_size"]) for (fact,) in facts] == [(n, 4) for n in range(4)]
    assert len({(fact["slope"], fact["offset"]) for (fact,) in facts}) == 1, (
        "the ranks learnt different lines"
    )
    seen = [row for (fact,) in facts for row in fact["rows"]]
    assert len(seen) == len(set(seen)) > 0, "two ranks trained on the same row"


def single_card_words(tiny_model, rows_file, out):
    return [
        "--model_path", str(tiny_model), "--data_path", str(rows_file), "--output_dir", str(out), "--max_steps", "2",
        "--print_rows",
    ]  # fmt: skip


def check_single_card_script(facts_of_ranks, output, out, world_size):
    for rank, text in enumerate(output):
        assert f"process {rank} of {world_size}: 24 rows" in text
    assert sum("adapter saved in" in text for text in output) == 1
    assert (out / "adapter_model.safetensors").stat().st_size > 1000
    assert len(list(out.glob("checkpoint-2"))) == 1
    rows = [[row for fact in facts if "rows" in fact for row in fact["rows"]] for facts in facts_of_ranks]
    assert all(rows), rows
    first_steps = [row for taken in rows for row in taken[:2]]
    assert len(first_steps) == len(set(first_steps)), f"ranks share rows: {rows}"


def test_the_single_card_script_runs_alone(tiny_model, rows_file, lab_path):
    out = lab_path / "out"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "train_lora.py"), *single_card_words(tiny_model, rows_file, out)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_single_card_script([json_objects(done.stdout)], [done.stdout], out, 1)


def test_the_single_card_script_runs_unchanged_on_two_hosts(lab, lab_path, tiny_model, rows_file):
    out = lab_path / "out"
    words = single_card_words(tiny_model, rows_file, out)
    facts, _ = launch(lab, lab_path, str(EXAMPLES / "train_lora.py"), *words)
    check_single_card_script(facts, rank_logs(lab_path / "run"), out, 4)


def test_the_single_card_script_runs_unchanged_on_two_local_ranks(lab_path, tiny_model, rows_file):
    out = lab_path / "out"
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "--nproc", "2", "--run-dir", str(lab_path / "run"),
         str(EXAMPLES / "train_lora.py"), *single_card_words(tiny_model, rows_file, out)],
        capture_output=True, text=True, timeout=240, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    logs = rank_logs(lab_path / "run")
    check_single_card_script([json_objects(log) for log in logs], logs, out, 2)


def test_summary_of_a_run_that_went_well(lab, lab_path):
    launch(lab, lab_path, str(EXAMPLES / "show.py"), "--x=a b")
    summary = json.loads((lab_path / "run" / "summary.json").read_text())
    assert (summary["exit"], summary["kind"]) == (0, "done")
