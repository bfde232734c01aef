"""Tests of the loopback address, in network namespaces that lack one (root)."""

import pytest
from net_namespaces import needs_namespaces, ports, run_inside

from slackline.cli._job._launch import meeting_at
from slackline.cli._job._loopback import loopback_address

_FIND = """
from slackline.cli._job._loopback import loopback_address
from slackline.errors import UsageError
try:
    print(loopback_address())
except UsageError as error:
    print(error)
"""


def test_this_machine_has_a_loopback_address() -> None:
    assert loopback_address() in ("127.0.0.1", "::1")


def test_an_address_of_ipv6_is_set_in_brackets_where_a_port_follows() -> None:
    assert "--rdzv-endpoint=[::1]:0" in meeting_at("::1")
    assert "--local-addr=::1" in meeting_at("::1")


@needs_namespaces
@pytest.mark.parametrize(
    ("prepared", "said"),
    [
        ("ip link set lo up", "127.0.0.1\n"),
        ("ip link set lo up; ip address del 127.0.0.1/8 dev lo", "::1\n"),
        (
            "true",
            "the ranks of this machine meet at its loopback address, which does not work "
            "(127.0.0.1: Network is unreachable; ::1: Cannot assign requested address); "
            "bring the interface up: ip link set dev lo up\n",
        ),
    ],
    ids=["up", "IPv6 alone", "down"],
)
def test_the_address_is_one_that_works(prepared: str, said: str) -> None:
    assert run_inside(prepared, _FIND) == said


_REQUIRE = """
from slackline.cli._job._loopback import require_ports
from slackline.errors import UsageError
try:
    require_ports("127.0.0.1", 4)
    print("enough")
except UsageError as error:
    print(error)
"""


@needs_namespaces
@pytest.mark.parametrize(
    ("last", "said"),
    [
        (40015, "enough\n"),
        (
            40007,
            "a job of 4 ranks on this machine needs 10 free ports of 127.0.0.1, and 8 are free: "
            "the kernel takes ports from 40000 to 40007 (net.ipv4.ip_local_port_range), which are "
            "8: widen the range, as by sysctl -w net.ipv4.ip_local_port_range='32768 60999', or "
            "end programs that hold ports\n",
        ),
    ],
)
def test_a_job_that_cannot_have_its_ports_is_refused_with_their_range(last: int, said: str) -> None:
    assert run_inside(ports(40000, last), _REQUIRE) == said
