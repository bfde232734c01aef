"""A cluster of Slurm for the tests of this folder, whose modules tests can import."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

if str(Path(__file__).parent) not in sys.path:
    sys.path.insert(0, str(Path(__file__).parent))

from slurm_cluster import PROGRAMS, Cluster


@pytest.fixture
def slurm(lab_allowed: None, tmp_path: Path) -> Iterator[Cluster]:
    """Provide a Slurm cluster of two nodes; skip the test where a program of Slurm is missing."""
    if missing := [program for program in PROGRAMS if shutil.which(program) is None]:
        pytest.skip(
            f"{', '.join(missing)}: not installed; apt install slurmctld slurmd munge does it"
        )
    with Cluster(tmp_path / "slurm") as cluster:
        yield cluster
