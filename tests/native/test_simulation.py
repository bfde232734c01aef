"""Tests of the simulation of whole engines: it finds faults that this project had."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIMULATION = ROOT / "native" / "tests" / "simulation"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_five_planted_faults_are_found() -> None:
    """Each commit plants five others, and builds the engine with each of them."""
    command = [sys.executable, str(SIMULATION / "planted.py"), "--rotate", "5"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_planted_fault_is_one_change_with_a_sentence() -> None:
    patches = sorted((SIMULATION / "planted").rglob("*.patch"))
    assert len(patches) > 30
    for patch in patches:
        sentence, _, change = patch.read_text().partition("\n\n")
        assert sentence.endswith("."), patch.name
        assert "\n" not in sentence
        assert change.startswith("diff --git a/native/src/")
        command = ["git", "apply", "--check", str(patch)]
        assert subprocess.run(command, cwd=ROOT).returncode == 0, patch.name
