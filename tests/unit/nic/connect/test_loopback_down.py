"""Tests of ranks of one host whose loopback interface is down, in network namespaces (root)."""

import pytest
from net_namespaces import needs_namespaces, run_inside

_JOB = """
import sys
from datetime import timedelta
from slackline.errors import SlacklineError
from slackline.nic import NicOptions
from slackline.testing import run_ranks
options = NicOptions(
    rails=tuple(sys.argv[1].split(",")),
    interfaces=tuple(sys.argv[2].split()),
    arena_bytes=64 << 20,
)
try:
    run_ranks(2, lambda group: None, options=options, timeout=timedelta(seconds=int(sys.argv[3])))
    print("open")
except SlacklineError as error:
    print(type(error).__name__, error)
"""
_ADVICE = (
    "the loopback interface lo is down, which ranks of one host need for TCP and UDP: "
    "ip link set lo up"
)
_NO_PATH = ("LinkError", "PeerError")
"""The errors of two ranks, of which one may hear of the other's error first."""
_ANOTHER = "ip link add one type veth peer two; ip address add 10.9.9.1/24 dev one; "
_ANOTHER += "ip link set one up; ip link set two up"


@needs_namespaces
@pytest.mark.parametrize(
    ("prepared", "rails", "interfaces", "kinds"),
    [
        ("true", "tcp", "", _NO_PATH),
        ("true", "shm,tcp", "", ("open",)),
        (_ANOTHER, "udp", "", _NO_PATH),
        (_ANOTHER, "tcp", "10.9.9.1/24", ("TimeoutError",)),
    ],
    ids=["alone", "shared memory", "beside another", "through another"],
)
def test_ranks_that_need_a_loopback_interface_which_is_down_say_so(
    prepared: str, rails: str, interfaces: str, kinds: tuple[str, ...]
) -> None:
    found = run_inside(prepared, _JOB, rails, interfaces, "2")
    assert found.split()[0] in kinds, found
    assert (_ADVICE in found) == (kinds != ("open",)), found
