"""No secret in any command line on any host while a run starts, runs and ends, nor anywhere in what it leaves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.whole_path.facts import read_facts, write_script

SECRETS = {
    "HF_TOKEN": "hf_1secret", "WANDB_API_KEY": "2secret", "MY_PASSWORD": "3secret", "DB_SECRET": "4secret",
    "http_proxy": "http://bob:5secret@proxy:3128",
}  # fmt: skip
QUIET = """
import json, os, sys, time
print(json.dumps({"rank": int(os.environ["RANK"]), "lengths": {n: len(os.environ.get(n, "")) for n in sys.argv[1:]}}))
sys.stdout.flush()
time.sleep(0.7)
"""


@pytest.mark.lab
@pytest.mark.parametrize("transport", ["ssh", "openssh"])
def test_no_secret_is_seen_or_left(lab, lab_path: Path, transport):
    names = lab.up(2)
    write_script(lab_path)
    (lab_path / "quiet.py").write_text(QUIET)
    secret = lab_path / "secret"  # what the user keeps there is not ours
    secret.mkdir()
    (secret / "job.env").write_text(f"MY_PASSWORD={SECRETS['MY_PASSWORD']}\n")
    proxy, db = SECRETS["http_proxy"], SECRETS["DB_SECRET"]
    hosts = "".join(f"{name} slots=2 env.DB_SECRET={db} env.http_proxy={proxy}\n" for name in names)
    (secret / "hosts").write_text(hosts)
    words = [
        "--hosts",
        "secret/hosts",
        "--env-file",
        "secret/job.env",
        "--env",
        "WANDB_API_KEY",
        "--run-dir",
        "run",
    ]
    process = lab.launch_popen(
        [*words, "--transport", transport, "quiet.py", *SECRETS], cwd=lab_path,
        env={name: SECRETS[name] for name in ("HF_TOKEN", "WANDB_API_KEY")},
    )  # fmt: skip
    seen: set[str] = set()
    while process.poll() is None:
        seen |= {entry.cmdline for host in (1, 2) for entry in lab.processes(host)}
        time.sleep(0.01)
    assert process.returncode == 0, process.stdout.read()
    facts = read_facts(lab_path / "run")
    assert [told["lengths"] for told in facts] == [{name: len(SECRETS[name]) for name in SECRETS}] * 4
    assert any("quiet.py" in line for line in seen)
    for value in ("1secret", "2secret", "3secret", "4secret", "5secret"):
        assert not [line for line in seen if value in line]
        left = [
            path
            for path in (lab_path / "run").rglob("*")
            if path.is_file() and value.encode() in path.read_bytes()
        ]
        assert left == []
    caches = [path for path in lab.home.rglob("*") if path.is_file() and b"secret@proxy" in path.read_bytes()]
    assert caches == []
