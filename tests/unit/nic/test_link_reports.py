"""Tests of the reports on links: which rails stay within a host."""

import pytest

from slackline.nic._link_reports import within_host


@pytest.mark.parametrize(
    "name",
    [
        "tcp 127.0.0.1>127.0.0.1",
        "udp 127.0.0.1>127.0.0.2",
        "tcp ::1>::1",
        "tcp 10.77.0.2>10.77.0.2",
        "tcp fe80::1%eth0>fe80::1%eth0",
    ],
)
def test_a_rail_between_addresses_of_one_host_stays_within_it(name: str) -> None:
    assert within_host(name)


@pytest.mark.parametrize("name", ["tcp 10.77.0.2>10.77.0.3", "udp fe80::1%eth0>fe80::2", "tcp", ""])
def test_a_rail_between_two_hosts_or_without_addresses_does_not(name: str) -> None:
    assert not within_host(name)
