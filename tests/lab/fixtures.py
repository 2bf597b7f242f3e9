"""The fixtures that give tests a lab: ``lab`` for one test, ``lab_session`` below it, ``lab_path`` for its files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab

#: where the lab's files lie; a second checkout has its own, a second lab in one checkout names another one
FOLDER = Path(os.environ.get("DCU_LAB_FOLDER", Path(__file__).resolve().parents[2] / ".lab"))


@pytest.fixture(scope="session")
def lab_session() -> Iterator[Lab]:
    """One lab for all tests of this run; waits while another run has it. Hosts boot on demand: ``lab.up(n)``."""
    lab = Lab(FOLDER)
    yield lab
    lab.down()


@pytest.fixture
def lab(lab_session: Lab) -> Iterator[Lab]:
    """The lab, put in order again after the test."""
    yield lab_session
    lab_session.restore()


@pytest.fixture
def lab_path(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder of this test that all hosts see: ``tmp_path`` is not one, since each host has its own /tmp."""
    yield from shared_folder(lab, request)


def shared_folder(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder in what all hosts of a lab share, named after the test and removed after it."""
    folder = lab.shared / request.node.name.translate(str.maketrans("/[] ", "____"))
    folder.mkdir()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
