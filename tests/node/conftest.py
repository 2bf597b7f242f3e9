"""Fixtures of the agent's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.head import Head, open_head


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    """A head with an agent of its own."""
    with open_head(tmp_path) as opened:
        yield opened
