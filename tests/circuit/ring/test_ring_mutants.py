"""Tests that the checks of a ring find a NIC that is wrong in one place."""

import pytest
from mutating import make
from ring_mutants import MUTANTS, OPTIONS, ring_fails

from slackline.circuit import cached_ring

# The limit leaves time to compile a circuit on a busy machine.
pytestmark = [pytest.mark.simulates, pytest.mark.timeout(300)]


@pytest.mark.slow  # each test is a compilation; other files have a mutant in every run
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make(MUTANTS[name], monkeypatch)
    assert MUTANTS[name].check() != ""


@pytest.mark.slow
def test_the_ring_passes_where_mutants_fail() -> None:
    assert ring_fails(cached_ring(OPTIONS)) == ""
