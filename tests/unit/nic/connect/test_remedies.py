"""Tests of the advice for rails that stay missing."""

from functools import partial

import pytest

from slackline.nic.connect._addresses import Interface
from slackline.nic.connect._paths import LongestPassed, LongPacketsLostError, plan_rails
from slackline.nic.connect._rail_set import RailSet
from slackline.nic.connect._remedies import behind_nat, reason

OURS = (Interface(name="eth0", address="10.0.0.1", prefix=24, port=7000),)
THEIRS = (Interface(name="eth0", address="172.17.0.2", prefix=16, port=7000),)
NAT = (
    " may be behind NAT (address translation) or a firewall: set SLACKLINE_INTERFACE on that host "
    "to an interface whose address all hosts of the job reach, or start its container with the "
    "network of the host"
)


def missing(*, calls: bool) -> RailSet:
    ends = (OURS, THEIRS) if calls else (THEIRS, OURS)
    plan = partial(plan_rails, *ends, one_host=False, chosen=False, kinds=("tcp",), connections=1)
    rails = RailSet(plan, calls=calls)
    rails.derive()
    return rails


def test_an_address_that_nothing_reaches_may_be_behind_nat() -> None:
    rails = missing(calls=True)
    assert behind_nat(rails, OURS, 3) == ""
    for rail in rails:
        rail.tries = 1
    assert behind_nat(rails, OURS, 3) == f"; the address 172.17.0.2 of rank 3{NAT}"


def test_an_address_that_the_other_rank_does_not_reach_may_be_behind_nat() -> None:
    rails = missing(calls=False)
    for rail in rails:
        rail.tries, rail.proven_s = 2, 0.001
    assert behind_nat(rails, OURS, 3) == f"; the address 10.0.0.1 of this rank{NAT}"


@pytest.mark.parametrize("state", ["added", "too_long"])
def test_a_path_that_has_worked_or_loses_long_packets_alone_is_not_behind_nat(state: str) -> None:
    rails = missing(calls=True)
    for rail in rails:
        rail.tries = 1
        setattr(rail, state, 1)
    assert behind_nat(rails, OURS, 3) == ""


def test_a_narrow_path_has_the_mtu_to_set() -> None:
    rails = missing(calls=True)
    passed = LongestPassed(arrived=1400, vanished=1450)
    error = LongPacketsLostError(("10.0.0.1", "172.17.0.2"), passed)
    assert reason(error, next(iter(rails)), rails, OURS) == (
        "packets of up to 1400 bytes from 10.0.0.1 to 172.17.0.2 arrive, and packets of 1450 bytes "
        "vanish without an answer: set the MTU of the interfaces of both addresses to 1400 (ip "
        "link set dev eth0 mtu 1400), or let the routers and firewalls between them pass ICMP "
        "messages of the type 'fragmentation needed' or 'packet too big'"
    )
