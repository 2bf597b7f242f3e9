"""The fixtures ``slurm`` (a Slurm cluster of four nodes) and ``slurm_path`` (a folder of the test that all nodes see)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.fixtures import FOLDER, shared_folder
from tests.lab.lab import Lab
from tests.slurm.slurm_lab import SlurmLab


@pytest.fixture(scope="session")
def slurm_session() -> Iterator[SlurmLab]:
    """One cluster for all tests of this run, beside the lab of the others."""
    lab = Lab(FOLDER / "slurm")
    try:
        yield SlurmLab(lab)
    finally:
        lab.down()


@pytest.fixture
def slurm(slurm_session: SlurmLab) -> Iterator[SlurmLab]:
    """The cluster, put in order again after the test."""
    yield slurm_session
    slurm_session.restore()


@pytest.fixture
def slurm_path(slurm: SlurmLab, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder that all nodes see."""
    yield from shared_folder(slurm.lab, request)
