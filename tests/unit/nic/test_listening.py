"""Tests of the addresses at which an engine listens."""

import os

import numpy as np
import pytest
from listening import listening
from net_namespaces import needs_namespaces, run_inside

from slackline.nic import Group, NativeNic, NicOptions
from slackline.nic.host import local_interfaces
from slackline.testing import run_ranks
from slackline.wire import DType, ReduceOp

SMALL = 32 << 20
ALL = {each.address for each in local_interfaces(())}
LOOPBACK = {each.address for each in local_interfaces((), loopback=True)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (NicOptions(arena_bytes=SMALL), ALL),
        (NicOptions(arena_bytes=SMALL, listen="all"), ALL),
        (NicOptions(arena_bytes=SMALL, listen="loopback"), LOOPBACK),
        (
            NicOptions(arena_bytes=SMALL, listen="loopback", interfaces=("127.0.1.1/24",)),
            {"127.0.1.1"},
        ),
        (NicOptions(arena_bytes=SMALL, listen="loopback", aggregator="10.0.0.9:7000"), ALL),
    ],
    ids=["default", "all", "loopback", "interfaces", "aggregator"],
)
def test_an_engine_listens_where_its_options_say(options: NicOptions, expected: set[str]) -> None:
    before = listening([os.getpid()])
    nic = NativeNic(options)
    try:
        found = {address.partition("%")[0] for address, _ in listening([os.getpid()]) - before}
        assert found == expected
    finally:
        nic.close()


def _sum(group: Group) -> float:
    data = np.full(1000, 2.0**group.rank, np.float32)
    at = data.ctypes.data
    group.all_reduce(at, at, data.size, DType.FLOAT32, ReduceOp.SUM, tag=0).wait()
    return float(data[999])


@pytest.mark.parametrize("rail", ["shm", "tcp", "udp"])
def test_ranks_of_one_host_reduce_over_any_rails_if_they_listen_at_loopback(rail: str) -> None:
    options = NicOptions(arena_bytes=SMALL, rails=(rail,), listen="loopback")
    assert run_ranks(3, _sum, options=options) == [7.0] * 3


@needs_namespaces
@pytest.mark.parametrize(
    ("prepared", "found"),
    [("ip link set lo up; ip address add 10.9.9.9/32 dev lo", "127.0.0.1 ::1\n"), ("true", "\n")],
    ids=["another address", "down"],
)
def test_an_address_of_the_loopback_interface_that_others_can_reach_is_no_loopback_address(
    prepared: str, found: str
) -> None:
    program = (
        "from slackline.nic.host import local_interfaces\n"
        "print(*(each.address for each in local_interfaces((), loopback=True)))"
    )
    assert run_inside(prepared, program) == found
