"""What a lab is made of: hosts, NICs, rates; checked when it is written down."""

import re
from dataclasses import dataclass

from slackline.errors import UsageError

__all__ = ["SWITCHES", "LabOptions", "check_name"]

SWITCHES = ("auto", "kernel", "user")
"""The kernel's bridge; slackline's own switch; the kernel's unless a fault asks for ours."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}", re.ASCII)
_MOST_HOSTS = 250
_MOST_NICS = 16
_SLOWEST = 1_000_000
_LEAST_BURST, _MOST_BURST = 16 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True)
class LabOptions:
    """A network to build. Raises UsageError that names the value that cannot be."""

    hosts: int = 2
    """How many hosts there are, numbered from 0; the one switch joins all of them."""
    nics: int = 1
    """NICs of each host, numbered from 0. NIC i of a host reaches NIC i of the others."""
    rate: int | None = None
    """Bits a second of each NIC in each direction; None is what this machine can carry."""
    burst: int | None = None
    """Bytes that a NIC may send ahead of its rate; None is what suits the rate. More takes fewer
    timers of the processor, and lets messages of that size ride for free."""
    mtu: int = 1500
    """Bytes of the largest IP packet."""
    switch: str = "auto"
    """One of SWITCHES."""

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
    """The name of a lab, if it is one."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            "the name of a lab must be up to 32 lower-case letters, digits and hyphens, "
            f"not {name!r}"
        )
    return name


def _between(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise UsageError(f"{what} must be between {least} and {most}, not {value}")
