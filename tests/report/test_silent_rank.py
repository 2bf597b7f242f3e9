"""A rank that ends without a word is not blamed before one with the same exit code that says why."""

from launcher.launch.outcome import RankExit
from launcher.report.failure import describe_failures, guilty


def end(rank, tail, seq, code=2):
    return RankExit(rank, "node01", code, None, tail, f"/run/logs/rank-{rank}.log", seq, False)


def test_the_rank_that_says_why_is_named_though_heard_later():
    told = "dcu-launch: error: rows.jsonl:41: output: is empty\ndcu-launch: hint: data.on_bad_row=skip\n"
    failures = [end(1, "", 0), end(0, told, 1)]
    assert guilty(failures).rank == 0
    assert "rows.jsonl:41" in describe_failures(failures).split("\n")[0]


def test_another_exit_code_stays_what_it_is():
    failures = [
        end(1, "", 0, code=3),
        end(0, "Traceback (most recent call last):\nValueError: after\n", 1, code=1),
    ]
    assert guilty(failures).rank == 1
