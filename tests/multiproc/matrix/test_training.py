"""Training through faults ends with the parameters of training without: DDP and DataParallel."""

from functools import cache

import pytest
from matrix_table import CELLS, RAILS
from matrix_training import dies_in_the_middle, stops_in_the_middle, trains_both_ways

RANKS = 3


@cache
def without_faults(job):
    """The parameters at the end; every rank has the same, over whatever rails."""
    answers = job(RANKS, trains_both_ways, environment=ORDERED)
    assert answers == [answers[0]] * RANKS
    return answers[0]


ORDERED = {"SLACKLINE_ORDER": "rank", "SLACKLINE_PLAN": "mesh"}
_TRAINED = {
    ("delay", "shm"),
    ("rate", "tcp"),
    ("loss", "udp"),
    ("corrupt", "tcp"),
    ("all-at-once", "udp"),
    ("down-for-a-while", "tcp"),
    ("nic-flaps", "two-tcp-nics"),
    ("nic-down", "two-udp-nics"),
}
QUICK = [cell for cell in CELLS if (cell.fault, cell.rail) in _TRAINED]


def check(job, cell):
    environment = ORDERED | cell.rails.environment | {"SLACKLINE_FAULTS": cell.text}
    answers = job(RANKS, trains_both_ways, environment=environment)
    assert answers == [without_faults(job)] * RANKS


@pytest.mark.parametrize("cell", QUICK, ids=str)
def test_training_through_a_fault_ends_with_the_same_bits(job, cell):
    check(job, cell)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell not in QUICK], ids=str)
def test_training_through_any_fault_ends_with_the_same_bits(job, cell):
    check(job, cell)


@pytest.mark.parametrize("rail", ["shm", "tcp", "udp"])
def test_a_rank_that_stands_still_for_a_while_changes_no_bit(job, rail):
    environment = ORDERED | RAILS[rail].environment
    answers = job(RANKS, stops_in_the_middle, environment=environment)
    assert answers == [without_faults(job)] * RANKS


@pytest.mark.parametrize("rail", RAILS)
def test_a_rank_that_is_killed_is_missed_at_once_not_at_the_timeout(job, rail):
    environment = ORDERED | RAILS[rail].environment
    answers = job(RANKS, dies_in_the_middle, environment=environment, dying=(1,))
    for rank in (0, 2):
        assert "PeerError" in answers[rank], answers[rank]
        assert " closed " in answers[rank]
