"""What ``--allow`` may name."""

import pytest

from launcher.base.errors import UsageError
from launcher.preflight.codes import CODES, NEVER_ALLOWED, check_allowed


def test_every_other_code_may_pass():
    check_allowed([code for code in CODES if code not in NEVER_ALLOWED])


def test_what_cannot_pass_is_told_at_once():
    with pytest.raises(UsageError) as raised:
        check_allowed(["rccl_differ", "RCCL_DIFFERS", "PYTHON_MISSING", "x", "x"])
    assert raised.value.message.split("\n") == [
        "--allow rccl_differ: no such finding; did you mean RCCL_DIFFERS?",
        "--allow PYTHON_MISSING: no rank can start without it",
        "--allow x: no such finding",
    ]
    assert raised.value.exit_code == 2
