"""Tests of the rates that NICs have negotiated, with real devices of the kernel."""

import array
import fcntl
import os
import resource
import socket
import struct
from collections.abc import Iterator

import pytest

from slackline.nic._negotiated import NegotiatedRates, negotiated_rate

_TUNSETIFF, _SIOCETHTOOL, _ETHTOOL_SSET = 0x400454CA, 0x8946, 0x2
_TAP_WITHOUT_HEADER = 0x1002


@pytest.fixture
def tap() -> Iterator[str]:
    """Provide the name of a TAP device, which is removed after the test."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no TAP device can be made: {error}")
    try:
        try:
            request = struct.pack("=16sH22x", b"slackline%d", _TAP_WITHOUT_HEADER)
            made = fcntl.ioctl(device, _TUNSETIFF, request)
        except OSError as error:
            pytest.skip(f"no TAP device can be made: {error}")
        yield made[:16].rstrip(b"\0").decode()
    finally:
        os.close(device)


def negotiate(device: str, megabits: int) -> None:
    low, high = megabits & 0xFFFF, megabits >> 16
    command = array.array("B", struct.pack("=I8xH14xH14x", _ETHTOOL_SSET, low, high))
    at, _ = command.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SIOCETHTOOL, struct.pack("16sP16x", device.encode(), at))


@pytest.mark.parametrize("megabits", [10, 1000, 100_000])
def test_the_rate_of_a_device_is_the_one_that_it_has_negotiated(tap: str, megabits: int) -> None:
    negotiate(tap, megabits)
    assert negotiated_rate(tap) == megabits * 1_000_000


def test_devices_without_a_rate_and_without_a_kernel_object_have_none(tap: str) -> None:
    assert negotiated_rate("lo") == 0
    assert negotiated_rate("slackline-none") == 0
    assert NegotiatedRates().of_rail("tcp 127.0.0.1>127.0.0.1") == 0
    assert NegotiatedRates().of_rail("tcp 192.0.2.7>192.0.2.8") == 0


def test_a_process_without_free_descriptors_knows_no_rate() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        assert negotiated_rate("lo") == 0
        assert NegotiatedRates().of_rail("tcp 192.0.2.7>192.0.2.8") == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
