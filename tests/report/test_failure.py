from __future__ import annotations

import itertools
import signal

import pytest

from launcher.launch.outcome import RankExit
from launcher.report.failure import describe_failures, guilty


def raised(error: str) -> str:
    return f'step 1\n[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 5\n[rank0]: {error}\n'


BAD_ROW = raised("ValueError: 坏数据 第3行")
PEER = raised(
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[10.0.0.1]:{port}. This is typically caused by a remote worker crashing."
)
FOLLOW_ON = [
    PEER,
    raised("RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:5: "
           "Connection reset by peer"),
    raised("RuntimeError: [/x/gloo/transport/tcp/pair.cc:589] Application timeout caused pair closure"),
    raised("torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333,"
           " remote process exited or there was a network error, NCCL version 2.18.6\nncclRemoteError: A call failed"
           " possibly due to a network error or a remote process exiting prematurely.\nLast error:\nsocketProgress: "
           "Connection closed by remote peer node01<57106>"),
    raised("RuntimeError: NCCL error: remote process exited or there was a network error"),
    raised("RuntimeError: Broken pipe"),
    raised("torch.distributed.DistStoreError: Socket Timeout"),
    raised("RuntimeError: Socket Timeout"),
    raised("RuntimeError: Work Request Flushed Error"),
    raised("torch.distributed.DistNetworkError: failed to recv, got 0 bytes"),
    raised("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect"),
    raised("torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    raised("RuntimeError: Timed out waiting 1800000ms for recv operation to complete"),
    raised("RuntimeError: recvValueWithTimeout failed on SocketImpl(fd=3)"),
    raised("RuntimeError: Socket closed"),
    raised("RuntimeError: Connection refused"),
    raised("RuntimeError: DataLoader worker (pid 71) is killed by signal: Terminated. "),
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [Rank 6] NCCL watchdog thread "
    "terminated with exception: [Rank 6] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880) ran\n",
    raised("torch.distributed.DistBackendError: NCCL communicator was aborted on rank 1."),
    raised("RuntimeError: Rank 1 successfully reached monitoredBarrier, but received errors while waiting"),
]  # fmt: skip
ABORTED = "loss 0.1\nterminate called without an active exception\n"


def end(rank: int, tail: str, code: int | None = 1, *, seq: int = 0, sig: int | None = None,
        after_stop: bool = False, host: str = "") -> RankExit:  # fmt: skip
    host = host or f"node{rank // 2:02d}"
    code = None if sig is not None else code
    return RankExit(rank, host, code, sig, tail, f"logs/{host}/rank-{rank:05d}.log", seq, after_stop)


@pytest.mark.parametrize("tail", FOLLOW_ON)
@pytest.mark.parametrize(
    "first",
    [
        end(2, BAD_ROW, seq=1),
        end(2, BAD_ROW, seq=1, after_stop=True),
        end(2, "", 3, seq=1),
        end(2, "", seq=1, sig=signal.SIGKILL),
        end(2, "", seq=1, sig=signal.SIGSEGV),
        end(2, "", seq=1, sig=signal.SIGABRT),
    ],
    ids=["raised", "heard of late", "exit 3", "SIGKILL", "SIGSEGV", "SIGABRT"],
)
def test_an_error_that_others_cause_is_never_the_first(tail: str, first: RankExit) -> None:
    followers = [end(0, tail, seq=0), end(1, tail, seq=2), end(3, tail, seq=3, after_stop=True)]
    for order in itertools.permutations([first, *followers]):
        assert guilty(order) is first


@pytest.mark.parametrize(
    "tail",
    [
        raised("requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, "
               "'Connection reset by peer'))"),
        raised("ValueError: bad row") + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("RuntimeError: Connection closed by peer"),
        raised("RuntimeError: Connection closed by peer") + "went on\n" + raised("KeyError: 'text'"),
    ],
)  # fmt: skip
def test_an_error_of_its_own_is_told_from_one_of_a_peer(tail: str) -> None:
    first = end(1, tail, seq=1)
    assert guilty([end(0, PEER, seq=0), first]) is first


def test_what_the_launcher_ended_is_not_guilty() -> None:
    stopped = [
        end(0, BAD_ROW, seq=0, sig=signal.SIGTERM, after_stop=True),
        end(1, "", 143, seq=1, after_stop=True),
        end(3, raised("KeyboardInterrupt"), seq=2, after_stop=True),
        end(4, "", seq=3, sig=signal.SIGKILL, after_stop=True),
        end(5, "", 1, seq=4, after_stop=True),
        end(6, ABORTED, sig=signal.SIGABRT, after_stop=True),
    ]
    first = end(2, PEER, seq=9)
    assert guilty([*stopped, first]) is first
    assert "node00" not in describe_failures([*stopped, first])


def test_without_an_error_of_its_own_the_first_heard_counts() -> None:
    first = end(3, PEER, seq=0)
    assert guilty([end(0, PEER, seq=1), first]) is first
    text = describe_failures([end(0, PEER, seq=1), first])
    assert "hint: no rank shows an error of its own" in text


def test_a_rank_that_ended_well_but_early_is_named() -> None:
    text = describe_failures([end(3, "", 0, seq=0), end(0, PEER, seq=1)])
    assert text.startswith("rank 0 on node00 failed: RuntimeError: Connection closed by peer")
    assert "hint: rank 3 on node01 had ended before, with exit code 0" in text


def test_no_failures_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no rank failed"):
        guilty([])


def test_the_report_names_rank_host_error_log_and_what_followed() -> None:
    failures = [
        end(0, PEER.format(port=1), seq=0),
        end(1, PEER.format(port=2), seq=1),
        end(3, BAD_ROW, seq=2),
        end(2, "", seq=3, sig=signal.SIGTERM, after_stop=True),
    ]
    assert describe_failures(failures, "runs/demo") == (
        "rank 3 on node01 failed: ValueError: 坏数据 第3行 (exit code 1)\n"
        "    Traceback (most recent call last):\n"
        '      File "train.py", line 5\n'
        "    ValueError: 坏数据 第3行\n"
        "  log: runs/demo/logs/node01/rank-00003.log\n"
        "after it: ranks 0,1 on node00: RuntimeError: Connection closed by peer [10.0.0.1]:1 (follow-on)"
    )


@pytest.mark.parametrize(
    ("failure", "headline"),
    [
        (end(1, "", 3), "rank 1 on node00 failed: exit code 3"),
        (end(1, "step 1\nno data in /data\n", 1), "rank 1 on node00 failed: exit code 1; last line: no data in /data"),
        (end(1, "", sig=signal.SIGABRT), "rank 1 on node00 failed: killed by SIGABRT"),
        (end(1, "", sig=64), "rank 1 on node00 failed: killed by SIGRTMAX"),
        (end(1, "", sig=99), "rank 1 on node00 failed: killed by signal 99"),
        (end(1, "", None), "rank 1 on node00 failed: no exit code"),
        (end(1, BAD_ROW, sig=signal.SIGABRT),
         "rank 1 on node00 failed: ValueError: 坏数据 第3行 (killed by SIGABRT)"),
        (end(1, BAD_ROW, sig=signal.SIGKILL), "rank 1 on node00 failed: killed by SIGKILL"),
    ],
)  # fmt: skip
def test_each_way_to_end_has_its_words(failure: RankExit, headline: str) -> None:
    assert describe_failures([failure]).split("\n")[0] == headline


def test_a_rank_that_aborts_at_its_end_is_told_what_to_let_go_of() -> None:
    lines = describe_failures([end(1, ABORTED, sig=signal.SIGABRT)]).split("\n")
    assert (
        lines[0]
        == "rank 1 on node00 failed: terminate called without an active exception (killed by SIGABRT)"
    )
    assert lines[-1].startswith("hint: a thread of torch.distributed was alive when Python ended")
    # the exception that ended it counts, not what its threads made of the end
    raised_before = describe_failures([end(1, BAD_ROW + ABORTED, sig=signal.SIGABRT)])
    assert raised_before.startswith("rank 1 on node00 failed: ValueError: 坏数据 第3行 (killed by SIGABRT)")
    assert "hint" not in raised_before


def test_a_rank_that_told_no_error_shows_the_end_of_its_log() -> None:
    text = describe_failures([end(1, "".join(f"line {number}\n" for number in range(30)), 3)], "/r")
    assert text.split("\n")[1:] == [*(f"    line {number}" for number in range(20, 30)),
                                    "  log: /r/logs/node00/rank-00001.log"]  # fmt: skip


def test_an_absolute_log_stays_as_it_is_and_none_is_left_out() -> None:
    failure = RankExit(0, "a", 1, None, "", "/x/rank-00000.log", 0, False)
    assert "log: /x/rank-00000.log" in describe_failures([failure], "/run")
    assert "log:" not in describe_failures([RankExit(0, "a", 1, None, "", "", 0, False)], "/run")


def test_the_same_error_on_many_ranks_is_told_once() -> None:
    failures = [
        end(rank, raised("ModuleNotFoundError: No module named 'peft'"), seq=rank) for rank in range(16)
    ]
    lines = describe_failures(failures).split("\n")
    assert lines[0] == "rank 0 on node00 failed: ModuleNotFoundError: No module named 'peft' (exit code 1)"
    assert "the same: ranks 1-15 on node00, node01, node02, node03 and 4 more" in lines
    assert lines[-1].startswith("hint: the interpreter of that node lacks the package")


def test_other_errors_of_their_own_come_before_those_that_follow() -> None:
    failures = [end(0, BAD_ROW, seq=1), end(1, PEER, seq=0), end(2, raised("KeyError: 'x'"), seq=2)]
    assert [line for line in describe_failures(failures).split("\n") if line.startswith("after")] == [
        "after it: rank 2 on node01: KeyError: 'x'",
        "after it: rank 1 on node00: RuntimeError: Connection closed by peer [10.0.0.1]:{port} (follow-on)",
    ]


def test_kinds_of_errors_beyond_a_few_are_counted() -> None:
    failures = [end(0, BAD_ROW)] + [
        end(rank, raised(f"KeyError: '{'x' * rank}'"), seq=rank) for rank in range(1, 10)
    ]
    assert describe_failures(failures).split("\n")[-1] == "after it: 3 more kinds of errors, see the logs"


def test_what_an_exception_began_with_is_told() -> None:
    wrapped = (
        raised("KeyError: 'text'")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + raised("DataError: row 3")
    )
    text = describe_failures([end(0, wrapped)])
    assert text.startswith("rank 0 on node00 failed: DataError: row 3 (exit code 1)\n")
    assert "\n  began with: KeyError: 'text'\n" in text


def test_closing_the_group_does_not_hide_what_was_raised_before() -> None:
    both = (
        raised("KeyError: 'text'")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("RuntimeError: Connection closed by peer")
    )
    text = describe_failures([end(0, both), end(1, PEER, seq=1)])
    assert text.startswith("rank 0 on node00 failed: KeyError: 'text' (exit code 1)\n")


def test_noise_of_torch_elastic_never_appears() -> None:
    elastic = (
        "E1202 08:00:00 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)\n"
        "Traceback (most recent call last):\n  File x\n"
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
        + "=" * 60 + "\nerror_file: <N/A>\n  traceback : To enable traceback see: https://x\n"
    )  # fmt: skip
    for tail in (BAD_ROW + elastic, elastic):
        text = describe_failures([end(0, tail)])
        assert not any(
            word in text for word in ("elastic", "ChildFailed", "error_file", "====", "enable traceback")
        )


@pytest.mark.parametrize(
    ("failure", "hint"),
    [
        (end(2, "", sig=signal.SIGKILL), "hint: on node01: the system or a person did that; out of memory? dmesg"),
        (end(2, raised("ImportError: libgalaxyhip.so.5: cannot open shared object file")),
         "hint: the DTK environment is not set up in the ranks' shell; --setup /opt/dtk/env.sh"),
        (end(2, "dcu-launch: error: data.path: no rows\nhint: name a file\n", 2), "hint: name a file"),
    ],
)  # fmt: skip
def test_a_cure_is_told_where_one_is_known(failure: RankExit, hint: str) -> None:
    assert describe_failures([failure]).split("\n")[-1].startswith(hint)
