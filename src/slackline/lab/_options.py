"""Options of a lab: hosts, NICs and rates, checked on construction."""

import re
from dataclasses import dataclass

from slackline.errors import UsageError

__all__ = ["SWITCHES", "LabOptions", "check_name"]

SWITCHES = ("auto", "kernel", "user")
"""The choices of a switch: "kernel" is the kernel's bridge, "user" a process of slackline.

"auto" takes the kernel's bridge unless a fault needs the switch "user"."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_MOST_HOSTS = 250
_MOST_NICS = 16
_SLOWEST = 1_000_000
_LEAST_BURST, _MOST_BURST = 16 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """Options of a lab to build. Raises UsageError that names an invalid value."""

    hosts: int = 2
    """The number of hosts, numbered from 0; one switch joins all of them."""
    nics: int = 1
    """The number of NICs of each host, numbered from 0. NIC i of a host reaches NIC i of every
    other host."""
    rate: int | None = None
    """Bits per second of each NIC in each direction; None sets no limit."""
    burst: int | None = None
    """Bytes that a NIC may send ahead of its rate; None chooses a value that suits the rate. A
    larger burst costs fewer timers, but messages up to that size are not slowed by the rate."""
    mtu: int = 1500
    """The largest IP packet in bytes."""
    switch: str = "auto"
    """The switch to use, one of SWITCHES."""

    def __post_init__(self) -> None:
        _between("hosts", self.hosts, 1, _MOST_HOSTS)
        _between("nics", self.nics, 1, _MOST_NICS)
        _between("mtu", self.mtu, 576, 9000)
        if self.rate is not None and self.rate < _SLOWEST:
            raise UsageError(f"a rate must be at least 1Mbit, not {self.rate}bit")
        if self.burst is not None:
            _between("burst", self.burst, _LEAST_BURST, _MOST_BURST)
        if self.switch not in SWITCHES:
            raise UsageError(f"a switch must be one of {', '.join(SWITCHES)}, not {self.switch!r}")


def check_name(name: str) -> str:
    """Return `name` if it is a valid name of a lab; raise UsageError otherwise."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "the name of a lab must be up to 32 lower-case letters, digits and hyphens, "
            f"not {name!r}"
        )
    return name


def _between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{what} must be between {least} and {most}, not {value}")
