"""Tests of groups on a host with few free ports, in network namespaces (root)."""

import os
import subprocess
import sys

import pytest

_NAMESPACES = os.geteuid() == 0 and (
    subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode == 0
)
needs_namespaces = pytest.mark.skipif(not _NAMESPACES, reason="no network namespace may be made")

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
    prepared = f"ip link set lo up; echo 40000 {last} > /proc/sys/net/ipv4/ip_local_port_range"
    inside = ["unshare", "--net", "sh", "-c", f'{prepared}; exec "$@"', "sh"]
    found = subprocess.run(
        [*inside, sys.executable, "-c", _JOB], check=True, capture_output=True, text=True
    )
    assert found.stdout.endswith(ends), found
