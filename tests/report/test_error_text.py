from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.error_text import MAX_LINES, find_error, last_lines

TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 5, in <module>
    main()
    ^^^^^^
ValueError: 坏数据 第3行
"""

RESOURCE_TRACKER = """\
/usr/lib/python3.10/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 6 \
leaked semaphore objects to clean up at shutdown
  warnings.warn('resource_tracker: There appear to be %d '
"""
IGNORED = """\
Exception ignored in: <function Pool.__del__ at 0x7f3c>
Traceback (most recent call last):
  File "pool.py", line 268, in __del__
    self._change_notifier.put(None)
OSError: [Errno 9] Bad file descriptor
"""
IGNORED_ATEXIT = """\
Error in atexit._run_exitfuncs:
Traceback (most recent call last):
  File "x.py", line 1, in f
    1/0
ZeroDivisionError: division by zero
"""
C10_WARNING = (
    "[rank3]:[W1202 10:11:12.123456789 ProcessGroupNCCL.cpp:1496] Warning: WARNING: "
    "destroy_process_group() was not called before program exit (function operator())\n"
)
ELASTIC = """\
E1202 08:00:00.000000 140 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1) local_rank: 0
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
TERMINATE = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] \
Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout(ms)=1) ran for 90 \
milliseconds before timing out.
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632 (most recent \
call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f83f296c1b6 in libc10.so)
"""
#: what C++ does in a thread that outlives the interpreter
ABORT = "import ctypes\nctypes.CDLL('libstdc++.so.6')['_ZSt9terminatev']()"


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "utf8", "-c", code]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


def summary(tail: str) -> str:
    error = find_error(tail)
    return error.summary if error else ""


@pytest.mark.parametrize(
    "noise",
    [
        "",
        RESOURCE_TRACKER,
        IGNORED,
        IGNORED_ATEXIT,
        C10_WARNING,
        ELASTIC,
        RESOURCE_TRACKER + C10_WARNING + IGNORED,
    ],
)
def test_the_error_is_found_under_what_comes_after_it(noise: str) -> None:
    error = find_error("step 1 loss 2.0\n" + TRACEBACK + noise)
    assert error is not None
    assert error.summary == error.root == error.first_line == "ValueError: 坏数据 第3行"
    assert list(error.lines) == TRACEBACK.rstrip("\n").split("\n")


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ("", ""),
        ("all is well\n", ""),
        (RESOURCE_TRACKER + C10_WARNING, ""),
        ("".join(f"[rank3]: {line}\n" for line in TRACEBACK.rstrip("\n").split("\n")), "ValueError: 坏数据 第3行"),
        (TRACEBACK.replace("\n", "\r\n"), "ValueError: 坏数据 第3行"),
        ("\r 10%|#\r 20%|##" + "\n" + TRACEBACK, "ValueError: 坏数据 第3行"),
        (TRACEBACK.replace("ValueError", "\x1b[1;35mValueError\x1b[0m"), "ValueError: 坏数据 第3行"),
        (TRACEBACK.rstrip("\n"), "ValueError: 坏数据 第3行"),
        ("Traceback (most recent call last):\n  File", ""),
        (TRACEBACK.replace("ValueError: 坏数据 第3行", "KeyboardInterrupt"), "KeyboardInterrupt"),
        (TRACEBACK + "went on\n" + TRACEBACK.replace("坏数据", "later"), "ValueError: later 第3行"),
        (TERMINATE, "c10::DistBackendError: [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog"),
        ("Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n", "Fatal Python error: Aborted"),
        ('  File "t.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n', "SyntaxError: invalid syntax"),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --y\n", "t.py: error: unrecognized arguments: --y"),
        ("python: can't open file '/x/t.py': [Errno 2] No such file", "python: can't open file '/x/t.py'"),
        ("/opt/py/bin/python: No module named trainer\n", "/opt/py/bin/python: No module named trainer"),
        (
            "  File x\ntorch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB\n" + C10_WARNING,
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB",
        ),
        (
            "Traceback (most recent call last):\n  File x\nRuntimeError: Error(s) in loading state_dict for M:\n"
            "\tsize mismatch for w\n",
            "RuntimeError: Error(s) in loading state_dict for M: size mismatch for w",
        ),
        (
            "Traceback (most recent call last):\n  File x\nRuntimeError: [/pytorch/third_party/gloo/gloo/transport/"
            "tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:19364. This is typically caused by a remote "
            "worker crashing. Check the logs of the remote worker before reporting an error. GLHF!\n",
            "RuntimeError: Connection closed by peer [127.0.0.1]:19364",
        ),
    ],
)  # fmt: skip
def test_errors_of_all_kinds_are_summed_up_in_a_line(tail: str, expected: str) -> None:
    assert summary(tail).startswith(expected)
    assert bool(summary(tail)) == bool(expected)


@pytest.mark.parametrize(
    ("code", "expected", "root"),
    [
        ("raise ValueError('坏')", "ValueError: 坏", "ValueError: 坏"),
        ("class E(Exception): pass\nraise E", "E", "E"),
        ("try:\n    1/0\nexcept Exception as e:\n    raise RuntimeError('w') from e",
         "RuntimeError: w", "ZeroDivisionError: division by zero"),
        ("try:\n    1/0\nfinally:\n    {}['x']", "KeyError: 'x'", "ZeroDivisionError: division by zero"),
        ("class A:\n    def __del__(self): raise OSError('late')\na = A()\nraise KeyError('row')",
         "KeyError: 'row'", "KeyError: 'row'"),
        ("import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()\nraise LookupError('main')",
         "LookupError: main", "LookupError: main"),
        ("import threading\nt = threading.Thread(target=lambda: 1/0)\nt.start(); t.join()\nraise SystemExit(3)",
         "ZeroDivisionError: division by zero", "ZeroDivisionError: division by zero"),
        ("import atexit\natexit.register(lambda: 1/0)\nraise LookupError('main')",
         "LookupError: main", "LookupError: main"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded",
         "RecursionError: maximum recursion depth exceeded"),
        ("import faulthandler, os\nfaulthandler.enable()\nos.abort()", "Fatal Python error: Aborted",
         "Fatal Python error: Aborted"),
        (ABORT, "terminate called without an active exception", "terminate called without an active exception"),
        ("import faulthandler\nfaulthandler.enable()\n" + ABORT,
         "terminate called without an active exception", "terminate called without an active exception"),
        ("import sys\nsys.exit(3)", "", ""),
    ],
)  # fmt: skip
def test_what_python_itself_writes_is_understood(code: str, expected: str, root: str) -> None:
    done = run_python(code)
    error = find_error("before\n" + done.stderr)
    assert (error.summary, error.first_line) == (expected, root) if error else not expected


@pytest.mark.skipif(sys.version_info < (3, 11), reason="the language has exception groups from 3.11 on")
def test_an_exception_group_is_named_and_shown_with_its_members() -> None:
    code = "raise ExceptionGroup('many', [ValueError('a'), TypeError('b')])"
    done = run_python(code)
    error = find_error(done.stderr)
    assert error is not None
    assert error.summary == "ExceptionGroup: many (2 sub-exceptions)"
    assert "    | ValueError: a" in error.lines


def test_the_error_of_a_data_worker_is_the_one_it_had_itself() -> None:
    error = find_error(
        "Traceback (most recent call last):\n  File loader\n    raise exception\n"
        "ValueError: Caught ValueError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n  File worker\n    fetch()\nKeyError: 'text'\n\n"
    )
    assert error is not None
    assert error.summary == error.root == "KeyError: 'text'"
    assert error.lines[1] == "  File loader"


def test_a_mistake_told_in_our_own_words_keeps_its_cure() -> None:
    tail = "x\ndcu-launch: error: data.path: no rows\ndcu-launch: error: model.path: missing\n  hint: look there\n"
    error = find_error("Traceback (most recent call last):\n  File x\nKeyError: 'handled'\n" + tail)
    assert error is not None
    assert error.summary == error.root == "data.path: no rows"
    assert error.lines == ("data.path: no rows", "model.path: missing")
    assert error.hint == "look there"
    for text in ("dcu-launch: error: x", "dcu-launch: error: x\ny\n"):
        found = find_error(text)
        assert found is not None
        assert found.hint == ""


def test_a_rich_traceback_is_read() -> None:
    box = "╭───── Traceback (most recent call last) ─────╮\n│ train.py:3 │\n╰──────╯\nValueError: 坏\n"
    assert summary(box) == "ValueError: 坏"


def test_a_long_traceback_keeps_its_ends() -> None:
    frames = "".join(f"  File f{number}\n" for number in range(100))
    error = find_error("Traceback (most recent call last):\n" + frames + "ValueError: x\n")
    assert error is not None
    assert len(error.lines) == MAX_LINES
    assert error.lines[:2] == ("Traceback (most recent call last):", "  ...")
    assert error.lines[-2:] == ("  File f99", "ValueError: x")


def test_last_lines_leave_noise_out() -> None:
    tail = "one\n\ntwo\n" + RESOURCE_TRACKER + C10_WARNING + ELASTIC.split("Traceback")[0]
    assert last_lines(tail, 5) == ["one", "two"]
    assert last_lines("\r 1%\r 2%\nx\ny\n", 2) == ["x", "y"]


@given(st.text(st.sampled_from("aT:\n \t|[]0\x1b\r坏"), max_size=60), st.text(max_size=60))
def test_nothing_in_a_log_breaks_the_search(before: str, after: str) -> None:
    find_error(before + TRACEBACK[: len(after)] + after)
    last_lines(before + after, 10)
