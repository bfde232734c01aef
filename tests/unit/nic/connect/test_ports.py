"""Tests of groups on a host with few free ports, in network namespaces (root)."""

import pytest
from net_namespaces import needs_namespaces, ports, run_inside

_JOB = """
from datetime import timedelta
from slackline.errors import SlacklineError
from slackline.nic import NicOptions
from slackline.testing import run_ranks
options = NicOptions(rails=("tcp",), interfaces=("127.0.0.1/8",), arena_bytes=64 << 20)
try:
    run_ranks(4, lambda group: None, options=options, timeout=timedelta(seconds=20))
    print("open")
except SlacklineError as error:
    print(error)
"""


@needs_namespaces
@pytest.mark.parametrize(
    ("last", "ends"),
    [
        (40015, "open\n"),
        (
            40003,
            "no port of 127.0.0.1 is free: the kernel takes ports from 40000 to 40003 "
            "(net.ipv4.ip_local_port_range), which are 4: widen the range, as by sysctl -w "
            "net.ipv4.ip_local_port_range='32768 60999', or end programs that hold ports\n",
        ),
    ],
)
def test_a_group_opens_with_few_ports_or_names_their_range(last: int, ends: str) -> None:
    found = run_inside(ports(40000, last), _JOB)
    assert found.endswith(ends), found
