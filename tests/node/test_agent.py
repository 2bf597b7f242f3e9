"""The agent with real rank processes, over pipes instead of SSH: how ranks start, what they get, how they and it end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.node.environment import NEVER_INHERITED
from tests.lab.process import list_children
from tests.node.head import Head, is_running, open_head, wait_until_gone

#: seconds by which a loaded machine may be late
SLACK_S = 4.0
STARTS = pytest.mark.parametrize("start", ["spawn", "fork"])

SLEEP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
DEAF = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SLEEP
# a grandchild that nothing holds to its rank: session, parent, signals and environment of its own
STRAY = """if 1:
    import os, signal, time
    def stray():
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork():
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            os.write(writing, b'%d' % os.getpid())
            os.execve('/bin/sleep', ['sleep', '601'], {})
        os.wait()
        return int(os.read(reading, 32))
"""


def begin(head: Head, program: str, *, start: str = "spawn", **order: object) -> dict[str, int]:
    """Prepare and order; pids by rank."""
    head.prepare(start=start)
    return head.order(program, start=start, **order)["pids"]


# ---- normal ends, and ends that are not


@STARTS
def test_ranks_run_to_their_end_and_nothing_is_left(head: Head, start: str) -> None:
    pids = begin(head, "import os\nprint('rank', os.environ['RANK'])\n", start=start)
    assert head.wait_for("stopped") == {"kind": "stopped", "left": [], "log_error": ""}
    assert head.exits() == {0: 0, 1: 0}
    assert [message["tail"] for message in head.all_of("rank_exit")] == ["", ""]
    assert [head.log(0), head.log(1)] == [b"rank 0\n", b"rank 1\n"]
    assert head.output == {0: b"rank 0\n", 1: b"rank 1\n"}
    agent = head.agent
    assert head.end() == 0
    wait_until_gone([agent, *pids.values()], 1)
    assert head.stderr.read_text() == ""
    assert list((head.folder / f"dcu-launch-{os.getuid()}").iterdir()) == []


@STARTS
@pytest.mark.parametrize(
    ("end", "status", "tail"),
    [
        ("raise SystemExit(3)", 3, "before\n"),
        ("raise SystemExit('a word')", 1, "before\na word\n"),
        ("import os; os.abort()", -signal.SIGABRT, "before\n"),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL, "before\n"),
        ("import os; os._exit(255)", 255, "before\n"),
        ("raise ValueError('坏数据 第3行')", 1, "ValueError: 坏数据 第3行\n"),
    ],
)
def test_the_status_and_last_words_of_a_failed_rank_are_told(
    head: Head, start: str, end: str, status: int, tail: str
) -> None:
    begin(head, f"print('before', flush=True)\n{end}\n", start=start, ranks=[5])
    told = head.wait_for("rank_exit")
    assert (told["rank"], told["status"], told["stopping"]) == (5, status, "")
    assert told["tail"].endswith(tail)
    assert told["tail"].startswith("before\n")
    assert told["log"] == str(head.folder / "logs" / "rank-00005.log")
    assert head.wait_for("stopped")["left"] == []


def test_a_failed_rank_does_not_stop_its_neighbours_by_itself(head: Head) -> None:
    """That is for the head to say, which hears of all nodes."""
    pids = begin(head, "import os, time\nos.environ['RANK'] == '1' and os._exit(4)\ntime.sleep(600)\n")
    assert head.wait_for("rank_exit")["status"] == 4
    time.sleep(0.3)
    assert is_running(pids["0"])
    head.send("stop", how="broken", grace=1.0)
    assert head.wait_for("rank_exit")["stopping"] == "broken"
    head.wait_for("stopped")


def test_a_stop_right_after_the_fork_reaches_every_rank(head: Head) -> None:
    """The import process that ranks are forked from ignores TERM; they must not, from their first moment on."""
    (head.folder / "slow.py").write_text(
        "import time, launcher.node.importer as importer\n"
        "real = importer._become_rank\n"
        "importer._become_rank = lambda *words: (time.sleep(0.5), real(*words))\n"
    )
    head.prepare(start="fork", modules=["slow"])
    head.order(SLEEP, start="fork")
    head.send("stop", how="asked", grace=20.0)
    head.wait_for("stopped", within_s=8.0)
    assert head.exits() == {0: -signal.SIGTERM, 1: -signal.SIGTERM}


def test_a_rank_that_stays_after_its_error_is_told_of_once(tmp_path: Path) -> None:
    """Its main thread is done, and Python waits for a thread that is no daemon; the others wait for the rank."""
    program = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n1 / 0\n"
    with open_head(tmp_path, before="from launcher.node import ranks; ranks.STAYS_AFTER_S = 0.3") as head:
        pid = begin(head, program, ranks=[3])["3"]
        told = head.wait_for("event")
        assert (told["rank"], told["event"]["kind"]) == (3, "warning")
        message = told["event"]["data"]["message"]
        assert message.startswith("rank 3 printed a traceback ")
        assert f"its process {pid} has not ended" in message
        time.sleep(1.2)
        head.send("stop", how="broken", grace=1.0)
        assert head.wait_for("rank_exit")["tail"].endswith("ZeroDivisionError: division by zero\n")
        assert len(head.all_of("event")) == 1


@STARTS
def test_what_ranks_leave_behind_is_ended_after_them(head: Head, start: str) -> None:
    begin(head, STRAY + "    print(stray(), flush=True)\n", start=start)
    assert head.wait_for("stopped")["left"] == []
    strays = [int(head.output[rank]) for rank in (0, 1)]
    assert not any(map(is_running, strays))
    assert head.end() == 0


def test_a_program_that_cannot_be_started_is_told_and_its_neighbours_end(head: Head) -> None:
    head.prepare()
    head.order("", argv=["/no/such/python", "x.py"], wait=False)
    fault = head.wait_for("fault")
    assert (fault["rank"], fault["error"]) == (0, "/no/such/python: No such file or directory")
    head.wait_for("stopped")
    head.order("", workdir="/no/such/folder", wait=False, ranks=[7, 8])
    fault = head.wait_for("fault")
    assert (fault["rank"], fault["error"]) == (7, "/no/such/folder: No such file or directory")
    head.wait_for("stopped")
    assert head.end() == 0


def test_a_second_order_after_the_first(head: Head) -> None:
    begin(head, "print('first', flush=True)\nraise SystemExit(1)")
    head.wait_for("stopped")
    head.order("print('second', flush=True)")
    head.wait_for("stopped")
    assert [message["status"] for message in head.all_of("rank_exit")] == [1, 1, 0, 0]
    assert head.log(0) == b"first\nsecond\n"


# ---- what a rank is given


@STARTS
def test_a_rank_inherits_no_rank_of_an_outer_run(tmp_path: Path, start: str) -> None:
    outer = dict.fromkeys(NEVER_INHERITED, "outer") | {
        "TORCHELASTIC_RUN_ID": "outer",
        "PMI_RANK": "3",
        "KEPT": "yes",
    }
    program = "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)\n"
    with open_head(tmp_path, env=outer) as head:
        begin(head, program, start=start, ranks=[4])
        head.wait_for("stopped")
        seen = json.loads(head.log(4))
    assert [name for name, value in seen.items() if value == "outer"] == []
    assert (seen["RANK"], seen["WORLD_SIZE"], seen["KEPT"]) == ("4", "1", "yes")
    assert "PMI_RANK" not in seen


@STARTS
def test_argv_and_variables_arrive_byte_for_byte(head: Head, start: str) -> None:
    words = [
        "--x=a b",
        '{"a":1}',
        "a;touch pwned",
        "$HOME",
        "`id`",
        "$(id)",
        "it's",
        "",
        "*",
        "a\nb",
        "中文",
        "\udcff",
        "-c",
    ]
    program = """if 1:
        import os, sys
        sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])) + b'\\0\\0' + os.environb[b'ODD'])"""
    head.prepare(start=start)
    odd = "".join(words) + "\udcfe"
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "ODD": odd}
    head.order(program, start=start, arguments=words, variables=variables)
    head.wait_for("stopped")
    for rank in (0, 1):
        assert head.log(rank) == b"\0".join(map(os.fsencode, words)) + b"\0\0" + os.fsencode(odd)
    assert not (head.folder / "pwned").exists()


@STARTS
def test_a_rank_starts_as_from_a_shell(head: Head, start: str) -> None:
    """Own session, empty stdin, Python's own signal handlers, no descriptor of the agent, its folder and its __main__."""
    program = """if 1:
        import json, os, signal, sys
        print(json.dumps({
            'sid': os.getsid(0) == os.getpid(), 'parent': os.getppid(), 'stdin': sys.stdin.read(), 'cwd': os.getcwd(),
            'fds': sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:3], 'count': len(os.listdir('/proc/self/fd')),
            'ignored': [s for s in range(1, 32) if s not in (9, 19) and signal.getsignal(s) == signal.SIG_IGN],
            'int': signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            'masked': len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
            'name': __name__, 'file': __file__, 'path0': sys.path[0], 'argv0': sys.argv[0]}))"""
    begin(head, program, start=start)
    head.wait_for("stopped")
    seen = json.loads(head.log(0))
    folder = str(head.folder)
    assert seen == {
        "sid": True, "parent": head.agent, "stdin": "", "cwd": folder, "fds": [0, 1, 2], "count": 4,
        "ignored": [signal.SIGPIPE, signal.SIGXFSZ], "int": True, "masked": 0, "name": "__main__",
        "file": f"{folder}/program.py", "path0": folder, "argv0": f"{folder}/program.py",
    }  # fmt: skip


def test_the_channel_of_a_recipe_carries_both_ways(head: Head) -> None:
    program = """if 1:
        import json, os, socket
        channel = socket.socket(fileno=int(os.environ['DCU_LAUNCH_CHANNEL']))
        lines = channel.makefile('r')
        def say(**message): channel.sendall((json.dumps(message) + '\\n').encode())
        first = json.loads(lines.readline())
        say(kind='rank_ready', data=first)
        for word in ('go', 'save'):
            assert json.loads(lines.readline())['kind'] == word
        channel.sendall(b'no json\\n[1]\\n')
        for step in range(2000):
            say(kind='metric', step=step, data={'loss': 1.5, 'text': 'x' * 100})
        say(kind='result', data={'adapter': '/somewhere'})"""
    head.prepare()
    head.order(program, ranks=[0], recipe={"config": {"a": 1}, "config_hash": "h"})
    ready = head.wait_for("event")["event"]
    assert ready == {"kind": "rank_ready", "data": {"config": {"a": 1}, "config_hash": "h", "kind": "recipe"}}
    head.send("go")
    head.send("save")
    head.wait_for("stopped")
    events = [message["event"] for message in head.all_of("event")][1:]
    assert [event["step"] for event in events[:-1]] == list(range(2000))
    assert events[-1] == {"kind": "result", "data": {"adapter": "/somewhere"}}
    assert head.exits() == {0: 0}


# ---- stops


@STARTS
def test_asked_to_stop_each_rank_gets_term_once_and_may_save(head: Head, start: str) -> None:
    program = """if 1:
        import os, signal, sys, time
        got = []
        signal.signal(signal.SIGTERM, lambda *_: got.append(time.time()))
        print('up', flush=True)
        while not got:
            time.sleep(0.01)
        with open('saved-' + os.environ['RANK'], 'w') as file:
            for part in range(10):
                file.write('part %d\\n' % part)
                time.sleep(0.1)
        print(len(got), 'signals', flush=True)
        sys.exit(143)"""
    begin(head, program, start=start)
    for rank in (0, 1):
        head.wait_for_output(b"up", rank)
    head.send("stop", how="asked", grace=30.0)
    head.send("stop", how="asked", grace=30.0)
    head.wait_for("stopped")
    assert head.exits() == {0: 143, 1: 143}
    for rank in (0, 1):
        assert (head.folder / f"saved-{rank}").read_text() == "".join(f"part {part}\n" for part in range(10))
        assert head.output[rank].endswith(b"1 signals\n")


@pytest.mark.parametrize(
    ("how", "grace", "takes"), [("asked", 0.5, 0.5), ("broken", 1.0, 1.0), ("broken", 0.0, 0.0)]
)
def test_eight_deaf_ranks_are_gone_in_one_grace_period(
    head: Head, how: str, grace: float, takes: float
) -> None:
    pids = begin(head, DEAF, ranks=range(8))
    for rank in range(8):
        head.wait_for_output(b"up", rank)
    asked = time.monotonic()
    head.send("stop", how=how, grace=grace)
    head.wait_for("stopped")
    took = time.monotonic() - asked
    assert takes <= took < takes + SLACK_S
    assert head.exits() == dict.fromkeys(range(8), -signal.SIGKILL)
    assert not any(is_running(pid) for pid in pids.values())


def test_a_broken_stop_after_an_asked_one_ends_the_grace(head: Head) -> None:
    begin(head, DEAF)
    head.wait_for_output(b"up", 0)
    head.wait_for_output(b"up", 1)
    head.send("stop", how="asked", grace=600.0)
    asked = time.monotonic()
    head.send("stop", how="broken", grace=0.0)
    head.wait_for("stopped")
    assert time.monotonic() - asked < SLACK_S


def test_asked_again_by_somebody_who_waits_less_long(head: Head) -> None:
    begin(head, DEAF)
    head.wait_for_output(b"up", 0)
    head.wait_for_output(b"up", 1)
    head.send("stop", how="asked", grace=600.0)
    asked = time.monotonic()
    head.send("stop", how="asked", grace=0.5)
    head.send("stop", how="asked", grace=600.0)
    head.wait_for("stopped")
    assert 0.5 <= time.monotonic() - asked < 0.5 + SLACK_S


def test_stop_before_any_order_and_after_the_end(head: Head) -> None:
    head.prepare()
    head.send("stop", how="asked", grace=30.0)
    head.wait_for("stopped")
    head.order("")
    head.wait_for("stopped")
    head.send("stop", how="broken", grace=1.0)
    assert head.wait_for("stopped")["left"] == []


@STARTS
def test_what_slurm_sends_to_every_process_of_a_step_ends_none_of_ours(head: Head, start: str) -> None:
    """The import process hosts the store, over which ranks agree while they save in the grace."""
    deaf = "import signal\nfor number in (10, 12, 15): signal.signal(number, signal.SIG_IGN)\n"
    pids = set(begin(head, deaf + SLEEP, start=start, grace=30.0).values())
    head.wait_for_output(b"up", 0)
    head.wait_for_output(b"up", 1)
    importers = set(list_children(head.agent)) - pids
    assert len(importers) == (start == "fork")
    ours = {head.guardian, head.agent, *importers}
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM):
        for pid in ours | pids if number != signal.SIGHUP else ours:
            os.kill(pid, number)
    time.sleep(0.5)
    assert all(map(is_running, ours | pids))


def test_a_long_run_keeps_its_code_young_and_goes_on_where_it_cannot(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "launcher").symlink_to(Path(__file__).resolve().parents[2] / "launcher")
    before = f"import launcher.node.agent as agent; agent.TOUCH_EVERY_S = 0.2; sys.argv[1] = {str(home)!r}"
    with open_head(tmp_path, before=before) as head:
        head.prepare()
        month_ago = time.time() - 30 * 86400
        os.utime(home, (month_ago, month_ago))
        deadline = time.monotonic() + 1 + SLACK_S
        while home.stat().st_mtime < month_ago + 60 and time.monotonic() < deadline:
            head.read(0.05)
        assert time.time() - home.stat().st_mtime < 60
        home.rename(tmp_path / "gone")
        head.read(1.0)
        head.send("clock")
        head.wait_for("clock")
        assert head.stderr.read_text() == ""


def test_term_to_the_agent_itself_asks_its_ranks(head: Head) -> None:
    """Slurm signals every process of a step."""
    begin(head, SLEEP)
    head.wait_for_output(b"up", 0)
    head.wait_for_output(b"up", 1)
    os.kill(head.agent, signal.SIGTERM)
    os.kill(head.guardian, signal.SIGTERM)
    head.wait_for("stopped")
    assert [(message["status"], message["stopping"]) for message in head.all_of("rank_exit")] == [
        (-signal.SIGTERM, "asked")
    ] * 2


def test_the_end_comes_at_once_while_a_set_up_script_runs(head: Head) -> None:
    script = head.folder / "slow.sh"
    script.write_text(f"echo $$ > {head.folder}/pid; sleep 602")
    head.send("prepare", python=sys.executable, workdir=str(head.folder), start="spawn", setup=[str(script)])
    deadline = time.monotonic() + 10
    while not (head.folder / "pid").exists() or not (head.folder / "pid").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    asked = time.monotonic()
    assert head.end() == 0
    assert time.monotonic() - asked < SLACK_S
    wait_until_gone([int((head.folder / "pid").read_text())], 1)


def test_the_line_is_answered_and_a_stop_obeyed_while_the_import_takes_long(tmp_path: Path) -> None:
    (tmp_path / "slow_stack.py").write_text("import time\ntime.sleep(600)\n")
    with open_head(tmp_path, env={"PYTHONPATH": str(tmp_path)}) as head:
        head.prepare(start="fork", modules=["slow_stack"], lost_after=1.0)
        head.order(SLEEP, start="fork", wait=False)
        time.sleep(1.5)  # an agent that does not hear its pings would have ended by now
        asked = time.monotonic()
        head.send("stop", how="asked", grace=30.0)
        head.wait_for("stopped")
        assert time.monotonic() - asked < SLACK_S
        assert head.all_of("started") == []
        assert head.end() == 0


def test_ranks_start_when_the_import_is_done(tmp_path: Path) -> None:
    (tmp_path / "slow_stack.py").write_text("import time\ntime.sleep(1)\n")
    with open_head(tmp_path, env={"PYTHONPATH": str(tmp_path)}) as head:
        head.prepare(start="fork", modules=["slow_stack"])
        head.order("import sys\nprint('slow_stack' in sys.modules, flush=True)", start="fork")
        head.wait_for("stopped")
        assert head.output == {0: b"True\n", 1: b"True\n"}


def test_ranks_are_spawned_when_the_import_process_dies_or_is_not_fit(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text("import os\nos._exit(9)\n")
    (tmp_path / "threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    )
    for module, why in (
        ("dies", "the import process ended (exit code 9)"),
        ("threads", "2 threads run after the import"),
    ):
        with open_head(tmp_path, env={"PYTHONPATH": str(tmp_path)}) as head:
            head.prepare(start="fork", modules=[module])
            head.order("print('ran', flush=True)", start="fork")
            head.wait_for("stopped")
            assert head.output == {0: b"ran\n", 1: b"ran\n"}
            (note,) = head.all_of("event")
            assert note["event"]["data"]["message"] == f"ranks start as processes of their own: {why}"
            assert head.end() == 0


@pytest.mark.parametrize(
    ("module", "how"),
    [("os._exit(9)", "(exit code 9)"), ("os.kill(os.getpid(), 9)", "(SIGKILL)")],
)
def test_an_import_process_that_dies_with_the_store_is_told_at_once(
    tmp_path: Path, module: str, how: str
) -> None:
    """Ranks of other nodes were told to meet there: ranks started here on their own would wait with them."""
    (tmp_path / "dies.py").write_text(f"import os\n{module}\n")
    with open_head(tmp_path, env={"PYTHONPATH": str(tmp_path)}) as head:
        head.prepare(start="fork", modules=["dies"])
        head.send("listen", port=0)
        head.wait_for("listening")
        time.sleep(0.5)  # it is gone before the order, and reaped
        head.order("print('ran', flush=True)", start="fork", host_store=True, wait=False)
        fault = head.wait_for("fault", within_s=SLACK_S)
        head.wait_for("stopped")
        assert fault["rank"] == 0
        assert fault["error"] == (
            f"--start fork: the import process ended {how}, which was to host the store where all ranks meet"
        )
        assert head.output == {}
        assert head.end() == 0


def test_a_store_that_dies_under_running_ranks_is_told(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("class cuda:\n    is_initialized = staticmethod(lambda: False)\n")
    (package / "distributed.py").write_text("def TCPStore(*_, **__):\n    return 1\n")
    with open_head(tmp_path, env={"PYTHONPATH": str(tmp_path)}) as head:
        head.prepare(start="fork", modules=["torch"])
        head.send("listen", port=0)
        head.wait_for("listening")
        before = set(list_children(head.agent))
        ranks = set(head.order(SLEEP, start="fork", host_store=True)["pids"].values())
        (store,) = set(list_children(head.agent)) - before - ranks
        os.kill(store, signal.SIGKILL)
        told = head.wait_for("event", within_s=SLACK_S)["event"]
        assert (told["kind"], told["data"]["message"]) == (
            "warning",
            "the process that hosts the store where ranks meet ended (SIGKILL): ranks may fail or hang for it",
        )
        head.send("stop", how="broken", grace=0.0)
        head.wait_for("stopped")
        assert head.end() == 0


# ---- the lease


def ranks_with_strays(head: Head, start: str) -> list[int]:
    pids = begin(head, STRAY + "    print(stray(), flush=True)\n    time.sleep(600)\n", start=start)
    for rank in (0, 1):
        head.wait_for_output(b"\n", rank)
    return [*pids.values(), *(int(head.output[rank]) for rank in (0, 1))]


@STARTS
def test_a_head_that_hangs_up_takes_its_ranks_along(head: Head, start: str) -> None:
    pids = ranks_with_strays(head, start)
    head.hang_up()
    assert head.wait_gone(3 + SLACK_S) == 5
    assert [pid for pid in pids if is_running(pid)] == []
    assert "the head closed the session; ending the ranks of this node" in head.stderr.read_text()


def test_a_silent_head_is_lost_after_the_limit(head: Head) -> None:
    head.prepare(lost_after=1.0)
    pids = head.order(DEAF)["pids"].values()
    head.fall_silent()
    silent = time.monotonic()
    assert head.wait_gone(2 + SLACK_S + 1) == 5
    assert time.monotonic() - silent >= 1.0 - 0.5  # the last ping may have been sent a moment before
    assert [pid for pid in pids if is_running(pid)] == []
    assert "no word from the head for 1 s" in head.stderr.read_text()


def test_a_head_that_does_not_read_is_not_lost_while_it_pings(head: Head) -> None:
    head.prepare(lost_after=1.0)
    head.order("import time\nwhile True:\n    print('x' * 65536)\n    time.sleep(0.001)\n")
    time.sleep(2.5)
    assert is_running(head.agent)
    head.send("end")
    assert head.wait_gone(10) == 0


def test_another_program_on_the_line_is_no_head(head: Head) -> None:
    pids = begin(head, SLEEP)["0"], head.agent
    head.process.stdin.write(b"Welcome to node01\r\n" * 5)
    assert head.wait_gone(3 + SLACK_S) == 5
    wait_until_gone(pids, 1)
    assert "not a frame: b'Welcome to node01" in head.stderr.read_text()


# ---- when the agent itself is killed


@STARTS
def test_the_guardian_ends_all_that_a_killed_agent_leaves(head: Head, start: str) -> None:
    pids = ranks_with_strays(head, start)
    killed = time.monotonic()
    os.kill(head.agent, signal.SIGKILL)
    took = wait_until_gone(pids, 2 + SLACK_S)
    assert head.wait_gone(5) == 137
    assert time.monotonic() - killed < 2 + SLACK_S
    assert took < 2 + SLACK_S
    assert list((head.folder / f"dcu-launch-{os.getuid()}").iterdir()) == []


def test_the_guardian_ends_what_started_a_moment_ago(head: Head) -> None:
    """Nothing that a scan had seen: found because it is the guardian's by descent."""
    program = (
        "    open('stray', 'w').write(str(stray()))\n    os.kill(os.getppid(), 9)\n    time.sleep(600)\n"
    )
    begin(head, STRAY + program, ranks=[0])
    assert head.wait_gone(2 + SLACK_S) == 137
    assert not is_running(int((head.folder / "stray").read_text()))


def test_the_next_agent_ends_what_agent_and_guardian_left_when_killed_together(tmp_path: Path) -> None:
    program = """if 1:
        import subprocess, time
        children = [subprocess.Popen(['setsid', 'sleep', '603']), subprocess.Popen(['setsid', 'sleep', '604'], env={})]
        print(*(child.pid for child in children), flush=True)
        time.sleep(600)"""
    with open_head(tmp_path) as head:
        pids = begin(head, program, ranks=[0])
        head.wait_for_output(b"\n")
        strays = [int(word) for word in head.output[0].split()]
        record = tmp_path / f"dcu-launch-{os.getuid()}" / f"agent-{head.agent}.json"
        deadline = time.monotonic() + 15
        while strays[1] not in [pid for pid, _ in json.loads(record.read_text())["known"]]:
            assert time.monotonic() < deadline, "no scan found the stray without the run's variable"
            time.sleep(0.05)
        agent = head.agent
        os.kill(head.guardian, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
        os.kill(head.guardian, signal.SIGKILL)
        wait_until_gone([agent, *pids.values()], SLACK_S)  # ranks have the kernel's word
        assert all(map(is_running, strays))
        with open_head(tmp_path) as later:
            assert later.prepare()["orphans"] == sorted(strays)
            assert not any(map(is_running, strays))
            later.end()
    assert not record.exists()


def test_what_starts_is_on_record_before_it_runs_and_an_agent_that_only_answers_leaves_no_file(
    tmp_path: Path,
) -> None:
    folder = tmp_path / f"dcu-launch-{os.getuid()}"
    with open_head(tmp_path) as head:
        head.prepare()
        assert not list(folder.glob("*"))
        head.order(f"import os; print(len(os.listdir({str(folder)!r})), flush=True)", ranks=[0])
        head.wait_for_output(b"\n")
        assert head.output[0].split()[0] == b"1"
        assert head.end() == 0
    assert not list(folder.glob("*"))


def test_another_agent_of_the_user_is_no_orphan(tmp_path: Path) -> None:
    with open_head(tmp_path) as first, open_head(tmp_path) as second:
        pids = begin(first, SLEEP)
        assert second.prepare()["orphans"] == []
        assert all(map(is_running, pids.values()))
        assert second.end() == 0
        assert all(map(is_running, pids.values()))


def test_an_agent_whose_guardian_is_killed_goes_on_and_ends_well(head: Head) -> None:
    pids = begin(head, SLEEP)
    agent = head.agent
    os.kill(head.guardian, signal.SIGKILL)
    head.send("stop", how="asked", grace=30.0)
    head.wait_for("stopped")
    head.send("end")
    head.wait_for("ended")
    wait_until_gone([agent, *pids.values()], SLACK_S)


# ---- output


@STARTS
@pytest.mark.parametrize("stream_all", [False, True])
def test_fifty_megabytes_are_whole_in_the_file(head: Head, start: str, stream_all: bool) -> None:
    program = """if 1:
        import os, random
        data = random.Random(int(os.environ['RANK'])).randbytes(1 << 20)
        for _ in range(50):
            os.write(1, data)
            os.write(2, b'\\n')"""
    begin(head, program, start=start, stream_all=stream_all)
    head.wait_for("stopped", 60)
    for rank in (0, 1):
        data = (random.Random(rank).randbytes(1 << 20) + b"\n") * 50
        assert head.log(rank) == data
        if stream_all:
            assert head.output[rank] == data


def test_what_the_head_does_not_take_is_left_out_with_a_note_and_the_line_stays_alive(head: Head) -> None:
    head.prepare(lost_after=2.0)
    head.order("import os\nfor _ in range(320):\n    os.write(1, b'0123456' * 9362 + b'\\n')\n", ranks=[0])
    log = head.folder / "logs" / "rank-00000.log"
    size = 320 * (7 * 9362 + 1)
    deadline = time.monotonic() + 30
    while not log.exists() or log.stat().st_size < size:  # nobody reads at the head all that time
        assert time.monotonic() < deadline
        time.sleep(0.05)
    head.wait_for("stopped")
    assert head.log(0) == (b"0123456" * 9362 + b"\n") * 320
    shown, _, note = head.output[0].rpartition(b"\n[dcu-launch: ")
    count = int(note.split()[0])
    assert note == b"%d bytes not shown here, they are in %s]\n" % (count, os.fsencode(log))
    assert len(shown) + count == size
    assert len(shown) < 8 << 20


def test_a_grandchild_that_holds_the_pipe_and_writes_for_ever_keeps_nobody_waiting(head: Head) -> None:
    program = """if 1:
        import os, subprocess
        subprocess.Popen(['sh', '-c', 'while :; do echo endless; done'], start_new_session=True)
        print('rank says good-bye', flush=True)
        os._exit(6)"""
    begin(head, program, ranks=[0])
    told = head.wait_for("rank_exit", 10)
    assert told["status"] == 6
    assert head.wait_for("stopped", 10)["left"] == []
    assert b"rank says good-bye" in head.log(0)
    assert head.end() == 0


def test_a_silent_grandchild_that_holds_the_pipe_is_ended_too(head: Head) -> None:
    begin(
        head,
        "import subprocess\nprint(subprocess.Popen(['setsid', 'sleep', '605']).pid, flush=True)\n",
        ranks=[0],
    )
    head.wait_for("stopped", 10)
    assert not is_running(int(head.log(0)))


def test_what_a_grandchild_says_before_its_end_is_kept(head: Head) -> None:
    begin(
        head, "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 0.1; echo late words'])\n", ranks=[0]
    )
    head.wait_for("stopped", 10)
    assert head.log(0) == b"late words\n"


@STARTS
def test_a_rank_may_close_its_output_and_work_on(head: Head, start: str) -> None:
    program = """if 1:
        import os, time
        print('last words', flush=True)
        os.close(1)
        os.close(2)
        time.sleep(0.5)
        open('worked-on', 'w').close()
        os._exit(7)"""
    begin(head, program, start=start, ranks=[0])
    head.wait_for("stopped")
    assert (head.exits(), head.log(0)) == ({0: 7}, b"last words\n")
    assert (head.folder / "worked-on").exists()


def test_a_log_that_cannot_be_written_is_told_and_the_ranks_run(head: Head) -> None:
    head.prepare()
    (head.folder / "file").write_text("")
    head.order("print('ran')", log_dir=str(head.folder / "file" / "logs"))
    assert "Not a directory" in head.wait_for("stopped")["log_error"]
    assert head.exits() == {0: 0, 1: 0}
    assert head.output[1] == b"ran\n"


# ---- old interpreters


def find_oldest_pythons() -> list[str]:
    """A Python 3.8 of this machine, if there is one."""
    roots = [Path(os.environ.get("PYENV_ROOT", "")), Path.home() / ".pyenv"]
    named = [
        shutil.which("python3.8"),
        *(str(path) for root in roots for path in root.glob("versions/3.8.*/bin/python")),
    ]
    works = [
        python
        for python in named
        if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    ]
    return works[:1]


@pytest.mark.parametrize("python", find_oldest_pythons())
def test_the_agent_runs_under_the_oldest_python(tmp_path: Path, python: str) -> None:
    """A real Python 3.8 where there is one; everywhere else its grammar is checked (test_architecture)."""
    with open_head(tmp_path, python=python) as head:
        report = head.prepare()
        assert report["agent_python"].startswith("3.8.")
        assert report["python"]["path"] == sys.executable
        head.order("print('ran')")
        head.wait_for("stopped")
        assert (head.exits(), head.log(1)) == ({0: 0, 1: 0}, b"ran\n")
    (tmp_path / "killed").mkdir()
    with open_head(tmp_path / "killed", python=python) as head:
        strays = ranks_with_strays(head, "spawn")
        os.kill(head.agent, signal.SIGKILL)
        wait_until_gone(strays, 2 + SLACK_S)
        assert head.wait_gone(5) == 137
        assert head.stderr.read_text() == ""
