"""Programs that the probe asks: what they say is taken, whatever they do, and none keeps it waiting."""

from __future__ import annotations

import os
import sys
import time

import pytest

from launcher.node.ask import MAX_TEXT, ask, ask_all


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_what_a_program_says_and_how_it_ends() -> None:
    answer = ask(python("import sys; print('a' * 300_000); print('why', file=sys.stderr)"), os.environ, 20)
    assert (answer.text, answer.error) == ("a" * 300_000 + "\n", "")
    answer = ask(python("import sys; print('half'); sys.exit('no card')"), os.environ, 20)
    assert (answer.text, answer.error) == ("half\n", "code 1: no card")
    answer = ask(python("import os; os.abort()"), os.environ, 20)
    assert answer.error == "killed by signal 6"
    assert ask(["/no/such"], os.environ, 20).error == "/no/such: No such file or directory"


@pytest.mark.parametrize("stream", ["", ", stdout=-3, stderr=-3"])
def test_a_child_that_stays_is_not_waited_for(stream: str) -> None:
    begun = time.monotonic()
    program = f"import subprocess; print('done', flush=True); subprocess.Popen(['sleep', '15']{stream})"
    answer = ask(python(program), os.environ, 30)
    assert (answer.text, answer.error) == ("done\n", "")
    assert time.monotonic() - begun < 10


def test_silence_and_endless_talk_are_cut_short() -> None:
    begun = time.monotonic()
    answers = ask_all(
        {
            "silent": python("print('first', flush=True); import time; time.sleep(100)"),
            "closed": python("import os, time; os.close(1); os.close(2); time.sleep(100)"),
            "endless": python("while True: print('x' * 1000)"),
        },
        os.environ,
        4.0,
    )
    assert time.monotonic() - begun < 15
    assert (answers["silent"].text, answers["silent"].error) == ("first\n", "no answer within 4 s")
    assert answers["closed"].error == "no answer within 4 s"
    assert answers["endless"].error == "it says more than 1 MiB"
    assert len(answers["endless"].text) == MAX_TEXT
