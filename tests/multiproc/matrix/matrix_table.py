"""The table of the fault matrix: faults, and the rails (paths between two ranks) on which they are
tested.

A fault without times begins with the group and lasts until its end. On UDP, loss, duplication and
reordering affect packets. TCP repairs such faults itself, so on TCP they appear as delays, and as
frames that overtake each other on different rails.
"""

from dataclasses import dataclass
from typing import Any

from slackline.nic import NicOptions

__all__ = [
    "CELLS",
    "FAULTS",
    "HOST_CELLS",
    "HOST_FAULTS",
    "LAB_RAILS",
    "QUICK_CELLS",
    "RAILS",
    "Cell",
    "Rails",
]


@dataclass(frozen=True, kw_only=True)
class Rails:
    """The rails of every link: their kinds, the number of NICs and the use of TLS."""

    kinds: tuple[str, ...]
    nics: int = 1
    tls: str = "off"

    @property
    def environment(self) -> dict[str, str]:
        interfaces = {"SLACKLINE_INTERFACE": ",".join(_NICS[: self.nics])} if self.nics > 1 else {}
        return {
            "SLACKLINE_RAILS": ",".join(self.kinds),
            "SLACKLINE_TLS": self.tls,
            **interfaces,
        }

    def options(self, **changes: Any) -> NicOptions:
        values: dict[str, Any] = {
            "rails": self.kinds,
            "interfaces": _NICS[: self.nics] if self.nics > 1 else (),
            "order": "rank",
            "plan": "mesh",
            "arena_bytes": 64 << 20,
            "checksums": "all",
            "tls": self.tls,
        }
        return NicOptions(**(values | changes))


_NICS = ("127.0.1.1/24", "127.0.2.1/24")

RAILS = {
    "shm": Rails(kinds=("shm",)),
    "tcp": Rails(kinds=("tcp",)),
    "udp": Rails(kinds=("udp",)),
    "tcp-and-udp": Rails(kinds=("tcp", "udp")),
    "two-tcp-nics": Rails(kinds=("tcp",), nics=2),
    "two-udp-nics": Rails(kinds=("udp",), nics=2),
}
LAB_RAILS = RAILS | {
    "tls": Rails(kinds=("tcp",), tls="require"),
    "two-tls-nics": Rails(kinds=("tcp",), nics=2, tls="require"),
}
"""The rails of labs. The engine's injector acts before TLS, where no data can be lost, so TLS is
only tested in labs."""

_ANY_RAIL = tuple(RAILS)
_WIRES = tuple(name for name in RAILS if name != "shm")
_TWO_NICS = ("two-tcp-nics", "two-udp-nics")

FAULTS = {
    "delay": ("link 0-1 delay 5ms", _ANY_RAIL),
    "delay-one-way": ("link 0>1 delay 10ms", _ANY_RAIL),
    "jitter": ("link 0-1 jitter 5ms seed 3", _ANY_RAIL),
    "rate": ("link 0-1 rate 200Mbit", _ANY_RAIL),
    "loss": ("link 0-1 loss 3% seed 4", _WIRES),
    "duplicate": ("link 0-1 duplicate 10% seed 5", _WIRES),
    "reorder": ("link 0-1 reorder 10% seed 6", _WIRES),
    "corrupt": ("link 0-1 corrupt 2% seed 7", _WIRES),
    "all-at-once": (
        "link 0-1 delay 2ms jitter 2ms loss 2% duplicate 2% reorder 2% corrupt 1% seed 8",
        _WIRES,
    ),
    "down-for-a-while": ("link 0-1 down for 400ms", _ANY_RAIL),
    "down-one-way-for-a-while": ("link 1>0 down for 400ms", _ANY_RAIL),
    "silent-for-long": ("nic 0.0 down for 3s", ("tcp",)),
    "nic-down": ("nic 0.1 down", _TWO_NICS),
    "nic-down-for-a-while": ("nic 0.0 down for 400ms", _WIRES),
    "nic-flaps": ("nic 1.0 flap 150ms for 900ms", _WIRES),
    "nic-slow": ("nic 1.1 rate 20Mbit", _TWO_NICS),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of the matrix: a fault between ranks that are connected by certain rails."""

    fault: str
    rail: str

    @property
    def text(self) -> str:
        return FAULTS[self.fault][0]

    @property
    def rails(self) -> Rails:
        return LAB_RAILS[self.rail]

    @property
    def sign(self) -> str | None:
        return SIGNS.get((self.fault, self.rail))

    def __str__(self) -> str:
        return f"{self.fault}-over-{self.rail}"


HOST_FAULTS = {
    "own-host-drops": (
        "10.77.",
        tuple(name for name, rails in LAB_RAILS.items() if "tcp" in rails.kinds),
    ),
    "own-host-drops-on-one-nic": ("10.77.0.", ("two-tcp-nics", "two-tls-nics")),
}
"""Faults of a host's own kernel, which drops the packets of the host's TCP connections before they
leave (own_host.py): the first digits of the addresses whose connections suffer, and the rails. Only
labs have them. UDP rails are left out: a silent UDP rail is kept, since a stopped peer confirms no
datagrams either."""

HOST_CELLS = [
    Cell(fault=fault, rail=rail) for fault, (_, rails) in HOST_FAULTS.items() for rail in rails
]

SIGNS = {
    ("loss", "udp"): "packets_resent",
    ("corrupt", "udp"): "packets_resent",
    ("all-at-once", "udp"): "packets_resent",
    ("corrupt", "tcp"): "rails_lost",
    ("corrupt", "tcp-and-udp"): "rails_lost",
    ("duplicate", "tcp"): "duplicates_dropped",
    ("nic-down", "two-tcp-nics"): "rails_suspected",
    ("nic-down", "two-udp-nics"): "rails_suspected",
}
"""The counters of the engines that must have increased, as proof that the fault was active."""

CELLS = [Cell(fault=fault, rail=rail) for fault, (_, rails) in FAULTS.items() for rail in rails]
_QUICK = {
    "delay": ("shm", "two-udp-nics"),
    "delay-one-way": ("tcp",),
    "jitter": ("udp",),
    "rate": ("tcp",),
    "loss": ("udp",),
    "duplicate": ("tcp",),
    "reorder": ("udp",),
    "corrupt": ("tcp", "udp"),
    "all-at-once": ("udp",),
    "down-for-a-while": ("tcp",),
    "down-one-way-for-a-while": ("udp",),
    "silent-for-long": (),
    "nic-down": ("two-tcp-nics", "two-udp-nics"),
    "nic-down-for-a-while": ("two-tcp-nics",),
    "nic-flaps": ("udp",),
    "nic-slow": ("two-udp-nics",),
}
QUICK_CELLS = [cell for cell in CELLS if cell.rail in _QUICK[cell.fault]]
"""A small selection of all cells, for quick test runs: each fault on the rails where it matters
most."""
