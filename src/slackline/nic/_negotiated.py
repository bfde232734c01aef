"""The rates that the NICs of this host have negotiated with their switches (ethtool(8))."""

from __future__ import annotations

import array
import fcntl
import logging
import socket
import struct
import time

from slackline.errors import UsageError
from slackline.nic.connect import devices

__all__ = ["NegotiatedRates", "negotiated_rate"]

_log = logging.getLogger("slackline.nic")

_SIOCETHTOOL = 0x8946
_ETHTOOL_GSET = 0x1
_COMMAND = struct.Struct("=III H BBBBBB II H BB I 8x")
"""struct ethtool_cmd: the field `speed` has the low bits of the rate, `speed_hi` the high ones."""
_SPEED, _SPEED_HIGH = 3, 12
_UNKNOWN = 0, 0xFFFF, 0xFFFF_FFFF
_REQUEST = struct.Struct("16sP16x")
"""struct ifreq with a pointer."""

_AGAIN_NS = 30_000_000_000
"""The time after which a rate is read again: a NIC may negotiate anew at any time."""


def negotiated_rate(device: str) -> int:
    """Return the negotiated rate of a network device in bits per second.

    The rate is 0 if the device has none, and where the kernel does not answer, as in a sandbox.
    """
    command = array.array("B", struct.pack(f"=I{_COMMAND.size - 4}x", _ETHTOOL_GSET))
    at, _ = command.buffer_info()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            fcntl.ioctl(asking, _SIOCETHTOOL, _REQUEST.pack(device.encode(), at))
    except OSError as error:
        _log.debug("the rate of %s is not known: %s", device, error)
        return 0
    told = _COMMAND.unpack(command.tobytes())
    megabits = told[_SPEED] | told[_SPEED_HIGH] << 16
    return 0 if megabits in _UNKNOWN else megabits * 1_000_000


class NegotiatedRates:
    """The negotiated rates of the devices that rails use, by the names of the rails."""

    def __init__(self) -> None:
        self._devices: dict[str, str] = {}
        self._rates: dict[str, tuple[int, int]] = {}

    def of_rail(self, name: str) -> int:
        """Return the rate in bits per second of the device of a rail, or 0 if it is not known.

        `name` is the engine's name of the rail: "tcp 10.0.0.1>10.0.0.2".
        """
        address = name.partition(" ")[2].partition(">")[0]
        device = self._device_of(address.partition("%")[0])
        if not device:
            return 0
        now_ns = time.monotonic_ns()
        rate, read_ns = self._rates.get(device, (0, 0))
        if not read_ns or now_ns - read_ns >= _AGAIN_NS:
            rate = negotiated_rate(device)
            self._rates[device] = rate, now_ns
        return rate

    def _device_of(self, address: str) -> str:
        if address not in self._devices:
            try:
                system = devices()
            except UsageError as error:  # the rate of a rail is no reason to end its monitor
                _log.debug("the device of %s is not known: %s", address, error)
                system = ()
            for device in system:
                if not device.loopback:
                    for each in device.addresses:
                        self._devices.setdefault(each.text, device.name)
            self._devices.setdefault(address, "")
        return self._devices[address]
