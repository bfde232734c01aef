"""The model checker of a link, with more faults at once than `make test-native` explores."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "extension"
SETTINGS = 12


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("failures", "suspicions", "most", "whole"), [(1, 1, 20_000, 3), (2, 2, 4_000, 0)]
)
def test_a_link_finds_a_way_on_from_every_state(
    failures: int, suspicions: int, most: int, whole: int
) -> None:
    """Explore up to `most` states of each setting; `whole` settings have no more."""
    cmake = Path(sys.executable).with_name("cmake")
    subprocess.run([cmake, "--build", BUILD, "--target", "slackline_link_model"], check=True)
    command = [BUILD / "slackline_link_model", *map(str, (failures, suspicions, most))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line for line in ended.stdout.splitlines() if " states, " in line]
    assert len(lines) == SETTINGS
    assert all(" 0 stuck," in line for line in lines), ended.stdout
    assert sum("(not all)" not in line for line in lines) == whole, ended.stdout
