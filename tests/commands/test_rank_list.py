"""Lists of ranks: what is shown, and that no rank that does not exist is passed over."""

import pytest

from launcher.base.errors import UsageError
from launcher.commands.rank_list import read_ranks


@pytest.mark.parametrize(
    ("text", "ranks"),
    [(None, None), ("0", {0}), ("0,3", {0, 3}), ("1-3", {1, 2, 3}), (" 0 , 2-3", {0, 2, 3})],
)
def test_read_ranks(text, ranks):
    assert read_ranks(text, 4) == ranks


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("4", "there are ranks 0 to 3 only"),
        ("9", "there are ranks 0 to 3 only"),
        ("0,9", "there are ranks 0 to 3 only"),
        ("2-999999999", "there are ranks 0 to 3 only"),
        ("0,3-1", "3-1 counts down; expected 1-3"),
        ("", "expected numbers and ranges, such as 0,8-11"),
        ("x", "expected numbers and ranges, such as 0,8-11"),
        ("-1", "expected numbers and ranges, such as 0,8-11"),
        ("1-2-3", "expected numbers and ranges, such as 0,8-11"),
    ],
)
def test_lists_that_are_refused(text, said):
    with pytest.raises(UsageError) as caught:
        read_ranks(text, 4)
    assert str(caught.value) == f"--ranks {text}: {said}"
