"""Tests that training through faults ends with the same parameters as training without faults, with
DDP and with DataParallel."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache

import pytest
from matrix_table import CELLS, RAILS
from matrix_training import VICTIM, dies_in_the_middle, suffers_in_the_middle, trains_both_ways

from slackline.faults import parse_all
from slackline.lab import Executor

RANKS = 3


@cache
def without_faults(job):
    """Return the parameters after training without faults. Over any rails, every rank has equal
    parameters."""
    answers = job(RANKS, trains_both_ways, environment=ORDERED)
    assert answers == [answers[0]] * RANKS
    return answers[0]


ORDERED = {"SLACKLINE_ORDER": "rank", "SLACKLINE_PLAN": "mesh"}
_TRAINED = {
    ("delay", "shm"),
    ("corrupt", "tcp"),
    ("all-at-once", "udp"),
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


def through(job, tmp_path, fault, rail, function, **details):
    """Return the results of the ranks of a job whose victim is subjected to a fault once it has
    started."""
    pid = tmp_path / "pid"
    environment = ORDERED | RAILS[rail].environment | {"MATRIX_PID": str(pid)}
    with ThreadPoolExecutor(1) as pool, closing(Executor()) as executor:
        running = pool.submit(job, RANKS, function, environment=environment, **details)
        while not pid.exists() and not running.done():
            time.sleep(0.005)
        if running.done():
            return running.result()
        with executor.inject(parse_all(fault), processes=lambda: {VICTIM: [int(pid.read_text())]}):
            return running.result()


@pytest.mark.parametrize(
    ("fault", "rail"),
    [
        pytest.param(
            fault,
            rail,
            marks=[pytest.mark.slow]
            * ((fault, rail) not in (("stop for 700ms", "tcp"), ("slow 4x", "udp"))),
        )
        for fault in ("stop for 700ms", "slow 4x")
        for rail in ("shm", "tcp", "udp")
    ],
)
def test_a_rank_that_stands_still_or_is_slow_changes_no_bit(job, tmp_path, fault, rail):
    answers = through(job, tmp_path, f"rank {VICTIM} {fault}", rail, suffers_in_the_middle)
    assert answers == [without_faults(job)] * RANKS


@pytest.mark.parametrize(
    "rail",
    [
        pytest.param(rail, marks=[pytest.mark.slow] * (rail not in ("shm", "tcp", "udp")))
        for rail in RAILS
    ],
)
def test_a_rank_that_is_killed_is_missed_at_once_not_at_the_timeout(job, tmp_path, rail):
    fault = f"rank {VICTIM} kill"
    answers = through(job, tmp_path, fault, rail, dies_in_the_middle, dying=(VICTIM,))
    for rank in (0, 2):
        assert "PeerError" in answers[rank], answers[rank]
        assert " closed " in answers[rank]
