"""Tests of the rows that tell the user-space switch which faults each path and NIC has."""

from slackline.faults import parse_all
from slackline.lab import LabOptions
from slackline.lab._fabrics import _paths, _ports

MS = 10**6
OPTIONS = LabOptions(hosts=3, nics=2)


def test_each_path_has_the_faults_of_its_link_and_those_of_its_nics_that_act_on_packets() -> None:
    plan = parse_all("link 0>1 delay 3ms rate 8Mbit seed 2; nic 1.0 loss 25% rate 80bit seed 5")
    rows = _paths(plan.pairs(0), plan.nics(0), OPTIONS)
    # From, to, NIC; delay, jitter, rate, loss, duplicate, reorder, corrupt, down, seed.
    assert rows == [
        (0, 1, 0, 3 * MS, 0, 1_000_000, 0.25, 0.0, 0.0, 0.0, False, 7),
        (0, 1, 1, 3 * MS, 0, 1_000_000, 0.0, 0.0, 0.0, 0.0, False, 2),
        (1, 0, 0, 0, 0, 0, 0.25, 0.0, 0.0, 0.0, False, 5),
        (1, 2, 0, 0, 0, 0, 0.25, 0.0, 0.0, 0.0, False, 5),
        (2, 1, 0, 0, 0, 0, 0.25, 0.0, 0.0, 0.0, False, 5),
    ]
    assert _ports(plan.nics(0)) == [(1, 0, 10, False)]


def test_a_nic_that_is_down_or_slow_is_no_fault_of_a_path() -> None:
    plan = parse_all("nic 0.1 down seed 3; nic 2.0 rate 8Mbit")
    assert _paths(plan.pairs(0), plan.nics(0), OPTIONS) == []
    assert _ports(plan.nics(0)) == [(0, 1, 0, True), (2, 0, 1_000_000, False)]
