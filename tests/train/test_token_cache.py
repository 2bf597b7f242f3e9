"""Kept tokens: the same as new ones, made once, made anew when anything is wrong with them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.base.config import Recipe, from_dict
from launcher.base.errors import ConfigError
from launcher.train import token_cache
from launcher.train.data import RunData, load_data
from launcher.train.model import load_tokenizer
from launcher.train.token_cache import find_folder, load_tokens, make_key, prune, read_tokens, write_tokens
from tests.train.tiny import Ranks, recipe, wait_until

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("default")]

#: in a rank that is about to train: rows of this size are kept too, and what it makes is told
KEEP_ALL = """
from launcher.train import token_cache
token_cache.LEAST_BYTES = 0
made = token_cache.load_data
token_cache.load_data = lambda *words: (print("made here", flush=True), made(*words))[1]
"""


@pytest.fixture(autouse=True)
def keep_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_cache, "LEAST_BYTES", 0)


@pytest.fixture
def tokenizer(model_dir: Path) -> Any:
    return load_tokenizer(str(model_dir))


def settings(model_dir: Path, rows: Path, cache: Path | str, **data: Any) -> Recipe:
    return from_dict(
        recipe(model_dir, rows, data={"cache": str(cache), "eval_fraction": 0.2, "max_length": 48, **data})
    )


def assert_same(a: RunData, b: RunData) -> None:
    assert (a.train, a.eval, a.messages, a.facts) == (b.train, b.eval, b.messages, b.facts)
    assert (a.template.name, a.template.bos) == (b.template.name, b.template.bos)
    assert {type(x) for row in a.train.rows for x in row.learn} == {bool}


def refuse(*words: Any) -> RunData:
    raise AssertionError("tokens are made a second time")


def test_kept_tokens_are_the_ones_that_are_made(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = settings(model_dir, rows_file, tmp_path)
    plain = load_data(values, tokenizer)
    assert len(plain.messages) > 1
    assert_same(load_tokens(values, tokenizer, print), plain)
    monkeypatch.setattr(token_cache, "load_data", refuse)
    assert_same(load_tokens(values, tokenizer, print), plain)
    assert_same(load_tokens(settings(model_dir, rows_file, tmp_path, packing=False), tokenizer, print), plain)
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".lock", ".tokens"]


def test_no_rows_held_back_is_kept_as_well(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path
) -> None:
    values = settings(model_dir, rows_file, tmp_path, eval_fraction=0.0)
    first, second = (load_tokens(values, tokenizer, print) for _ in range(2))
    assert second.eval.rows == ()
    assert_same(first, second)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "foreign"])
def test_what_is_not_whole_or_not_ones_own_is_made_anew(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path, damage: str
) -> None:
    values = settings(model_dir, rows_file, tmp_path)
    plain = load_tokens(values, tokenizer, print)
    (path,) = tmp_path.glob("*.tokens")
    whole = path.read_bytes()
    if damage == "foreign":
        os.chown(path, 12345, -1)
    else:
        flipped = whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:]
        path.write_bytes({"flip": flipped, "cut": whole[:-5], "empty": b""}[damage])
    assert read_tokens(path, tokenizer) is None
    assert_same(load_tokens(values, tokenizer, print), plain)
    assert path.read_bytes() == whole
    assert path.stat().st_uid == os.geteuid()


def test_the_key_knows_everything_that_decides_what_rows_become(
    model_dir: Path, plain_dir: Path, tokenizer: Any, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"instruction": "a", "output": "b"}\n')
    values = settings(model_dir, rows, "auto")
    keys = [make_key(values, tokenizer)]
    for changes in (
        {"max_length": 64},
        {"mask_prompt": False},
        {"template": "zh"},
        {"eval_fraction": 0.3},
        {"max_rows": 1},
    ):
        keys.append(make_key(settings(model_dir, rows, "auto", **changes), tokenizer))
    keys.append(make_key(replace(values, train=replace(values.train, seed=7)), tokenizer))
    keys.append(make_key(values, load_tokenizer(str(plain_dir))))
    rows.write_text('{"instruction": "a", "output": "c"}\n')
    keys.append(make_key(values, tokenizer))
    assert None not in keys
    assert len(set(keys)) == len(keys) == 9
    assert make_key(settings(model_dir, rows, "never", pack_length=64), tokenizer) == keys[-1]


def test_a_template_that_writes_the_day_is_kept_for_the_day(model_dir: Path, rows_file: Path) -> None:
    tokenizer = load_tokenizer(str(model_dir))
    before = token_cache.identify_tokenizer(tokenizer)
    tokenizer.chat_template = "{{ strftime_now('%d') }}" + tokenizer.chat_template
    after = token_cache.identify_tokenizer(tokenizer)
    assert before is not None
    assert after is not None
    today = str(token_cache.date.today())
    assert (today in before, today in after) == (False, True)


def test_ranks_wait_for_one_and_the_model_is_the_same_to_the_byte(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    cache, results = tmp_path / "cache", []
    for number, wish in enumerate(("never", str(cache), str(cache))):
        config = recipe(
            model_dir, rows_file, data={"cache": wish, "eval_fraction": 0.2}, train={"max_steps": 2}
        )
        ran = ranks.train(config, tmp_path / f"run{number}", 2, code=KEEP_ALL)
        made = sum(output.count("made here") for output in ran.outputs)
        weights = (ran.run_dir / "adapter" / "adapter_model.safetensors").read_bytes()
        results.append((made, weights, ran.losses))
    assert [made for made, _, _ in results] == [2, 1, 0]
    assert results[0][1:] == results[1][1:] == results[2][1:]
    assert len(list(cache.glob("*.tokens"))) == 1


#: two nodes of two ranks, each with a home of its own
OWN_HOMES = 'import os; os.environ["XDG_CACHE_HOME"] = f"HOMES/node{int(os.environ[\'RANK\']) // 2}"'


def test_nodes_that_share_no_home_make_tokens_once_each(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    config = recipe(model_dir, rows_file, data={"cache": "auto"}, train={"max_steps": 1})
    code = OWN_HOMES.replace("HOMES", str(tmp_path)) + KEEP_ALL
    ran = ranks.train(config, tmp_path / "run", 4, code=code)
    made = [output.count("made here") for output in ran.outputs]
    assert [sum(made[:2]), sum(made[2:])] == [1, 1]
    assert len({path.name for path in tmp_path.glob("node?/dcu-launch/tokens/*.tokens")}) == 1


def test_bad_rows_end_all_ranks_and_are_told_once(
    ranks: Ranks, model_dir: Path, rows_file: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([*json.loads(rows_file.read_text()), {"instruction": "x"}]))
    config = recipe(model_dir, rows, data={"cache": str(tmp_path / "cache")})
    ran = ranks.end(config, tmp_path / "run", 2, code=KEEP_ALL)
    assert ran.codes == [2, 2]
    assert sum(output.count("output: expected text, found nothing") for output in ran.outputs) == 1
    config["data"]["on_bad_row"] = "skip"
    ran = ranks.train(config, tmp_path / "run", 2, code=KEEP_ALL)
    again = ranks.train(config, tmp_path / "again", 1, code=KEEP_ALL)
    assert ran.outputs[0].count("1 bad rows left out") == again.outputs[0].count("1 bad rows left out") == 1
    assert "made here" not in again.outputs[0]


def test_one_that_dies_while_others_wait_is_noticed_and_told_of_before(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "_TELL_S", 0.0)
    values = settings(model_dir, rows_file, tmp_path)
    key = make_key(values, tokenizer)
    hold = "import fcntl, sys, time; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print(1, flush=True); time.sleep(99)"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / f"{key}.lock")], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        (tmp_path / f"{key}.progress").write_text("[12000, 50000]")
        told: list[str] = []
        got: list[RunData] = []
        waiting = threading.Thread(target=lambda: got.append(load_tokens(values, tokenizer, told.append)))
        waiting.start()
        wait_until(lambda: "tokenizing: 12,000 of 50,000 rows" in told, 20)
        time.sleep(0.3)
        assert got == []
        holder.kill()
    waiting.join(60)
    assert_same(got[0], load_data(values, tokenizer))


def test_a_disk_without_room_costs_the_file_alone(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path
) -> None:
    values, told = settings(model_dir, rows_file, tmp_path / "cache"), list[str]()
    plain, limits = load_data(values, tokenizer), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        assert_same(load_tokens(values, tokenizer, told.append), plain)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert told == [f"{tmp_path / 'cache'}: tokens are not kept: File too large"]
    assert [file.suffix for file in (tmp_path / "cache").iterdir()] == [".lock"]
    told.clear()
    assert_same(load_tokens(settings(model_dir, rows_file, "/dev/null/x"), tokenizer, told.append), plain)
    assert len(told) == 1
    assert "each rank makes rows into tokens by itself, and keeps none" in told[0]


def test_few_rows_are_not_kept(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_cache, "LEAST_BYTES", 2 << 20)
    load_tokens(settings(model_dir, rows_file, tmp_path / "cache"), tokenizer, print)
    assert not (tmp_path / "cache").exists()


def test_what_was_used_longest_ago_is_deleted(
    model_dir: Path, rows_file: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = load_data(settings(model_dir, rows_file, "never"), tokenizer)
    for number in range(4):
        write_tokens(tmp_path / f"{number}.tokens", data)
        os.utime(tmp_path / f"{number}.tokens", (1000 + number, 1000 + number))
    (tmp_path / "old.partial").touch()
    os.utime(tmp_path / "old.partial", (1000, 1000))
    assert read_tokens(tmp_path / "0.tokens", tokenizer) is not None  # used just now
    monkeypatch.setattr(token_cache, "MOST_FILES", 3)
    prune(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.tokens", "2.tokens", "3.tokens"]
    monkeypatch.setattr(token_cache, "MOST_BYTES", 1)
    prune(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["0.tokens"]


def test_the_folder_is_the_users_cache_or_the_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/zhang")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert find_folder("auto") == Path("/home/zhang/.cache/dcu-launch/tokens")
    assert find_folder("~/tokens") == Path("/home/zhang/tokens")
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/cache")
    assert find_folder("auto") == Path("/scratch/cache/dcu-launch/tokens")
    with pytest.raises(ConfigError, match="expected auto, never or a folder from / or ~ on; found 'tokens'"):
        settings(Path("m"), Path("r"), "tokens")
