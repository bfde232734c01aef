"""The wires and sizes that are measured, and the targets."""

from __future__ import annotations

from dataclasses import dataclass

HOSTS = 4
ITEM_BYTES = 4
"""The size of an element: float32."""
GBIT = 10**9

SYSTEMS = ("slackline tcp", "slackline udp", "gloo")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """The wire that joins the hosts: rate, number of NICs, switch and faults."""

    rate: int
    """The rate of each NIC in bits per second."""
    nics: int = 1
    switch: str = "kernel"
    burst: int | None = None
    """The bytes that a NIC may send ahead of its rate; None for the lab's default at that rate."""
    faults: str = ""
    """The faults of the wire in words: "1 % loss"."""

    def __str__(self) -> str:
        """Return a description for tables: "2 x 1 Gbit/s, 1 % loss"."""
        speed = f"{self.rate / GBIT:g} Gbit/s"
        if self.rate < GBIT:
            speed = f"{self.rate / 1e6:g} Mbit/s"
        name = speed if self.nics == 1 else f"{self.nics} x {speed}"
        if self.burst is not None:
            name = f"{name} in bursts of {self.burst >> 10} KiB"
        return f"{name}, {self.faults}" if self.faults else name


@dataclass(frozen=True, kw_only=True)
class Size:
    """An all_reduce of float32 with SUM of one size, repeated many times."""

    name: str
    nbytes: int
    buffers: int
    """The number of tensors that are reduced in turn, as a model's gradients are."""
    outstanding: int
    """The most operations that are under way at once; the same for every system."""
    gbit_passes: int
    """The number of times that a turn at 1 Gbit/s reduces all buffers.

    A faster wire gets more passes, in proportion.
    """
    warm_up: int
    """The number of passes over all buffers before the clock starts."""
    one_at_a_time: int
    """The number of blocking calls in a turn at 1 Gbit/s."""

    @property
    def count(self) -> int:
        return self.nbytes // ITEM_BYTES


SIZES = (
    Size(
        name="64 KiB",
        nbytes=64 << 10,
        buffers=64,
        outstanding=16,
        gbit_passes=10,
        warm_up=1,
        one_at_a_time=300,
    ),
    Size(
        name="1 MiB",
        nbytes=1 << 20,
        buffers=16,
        outstanding=8,
        gbit_passes=4,
        warm_up=1,
        one_at_a_time=40,
    ),
    Size(
        name="16 MiB",
        nbytes=16 << 20,
        buffers=8,
        outstanding=4,
        gbit_passes=1,
        warm_up=0,
        one_at_a_time=4,
    ),
    Size(
        name="100 MB",
        nbytes=10**8,
        buffers=3,
        outstanding=3,
        gbit_passes=1,
        warm_up=0,
        one_at_a_time=2,
    ),
)

# Targets for slackline over TCP, streamed: percent of the ideal wire at least, in the order of
# SIZES, by Gbit/s.
WIRE_TARGETS = {1: (98.5, 98.5, 98.5, 98.5), 5: (99.0, 99.0, 92.0, 92.0)}

# The percentages that a prototype published for gloo, one call at a time, in the order of SIZES.
PUBLISHED_GLOO = {1: (11, 82, 93, 97), 5: (3, 39, 64, 68)}

TWO_NICS_OVER_ONE = 1.95
TWO_NIC_RATES = (GBIT, GBIT // 5)
CUT_OVER_ALLOWED = 1.1
"""The largest allowed ratio of the measured time to the shortest, if a NIC is cut in the middle."""
RECOVERY_SECONDS = 2.0
RECOVERED_SHARE = 0.95
"""The share of the throughput before a cut that counts as recovered.

The throughput must recover within RECOVERY_SECONDS of the NIC's return.
"""
LOSS_SHARE = 0.90
"""The smallest allowed share of the loss-free throughput, at 1 % loss on every link over UDP."""
