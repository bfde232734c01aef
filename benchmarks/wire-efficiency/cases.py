"""What is measured and what is asked of it: tables."""

from __future__ import annotations

from dataclasses import dataclass

HOSTS = 4
ITEM_BYTES = 4
"""float32."""
GBIT = 10**9

SYSTEMS = ("slackline tcp", "slackline udp", "gloo")


@dataclass(frozen=True, kw_only=True)
class Wire:
    """What joins the hosts."""

    rate: int
    """Bits a second of each NIC."""
    nics: int = 1
    switch: str = "kernel"
    burst: int | None = None
    """Bytes that a NIC may send ahead of its rate; None: what the lab takes for the rate."""
    faults: str = ""
    """What is wrong with it: "1 % loss"."""

    def __str__(self) -> str:
        """For people: "2 x 1 Gbit/s, 1 % loss"."""
        speed = f"{self.rate / GBIT:g} Gbit/s"
        if self.rate < GBIT:
            speed = f"{self.rate / 1e6:g} Mbit/s"
        name = speed if self.nics == 1 else f"{self.nics} x {speed}"
        if self.burst is not None:
            name = f"{name} in bursts of {self.burst >> 10} KiB"
        return f"{name}, {self.faults}" if self.faults else name


@dataclass(frozen=True, kw_only=True)
class Size:
    """An all_reduce of float32 with SUM, many times over."""

    name: str
    nbytes: int
    buffers: int
    """Tensors that take turns, as a model's gradients do."""
    outstanding: int
    """Of them at most so many are under way at once; the same for every system."""
    gbit_passes: int
    """How often a turn at 1 Gbit/s goes through all buffers; a faster wire gets more, in
    proportion."""
    warm_up: int
    """Passes before the clock starts."""
    one_at_a_time: int
    """Blocking calls in a turn at 1 Gbit/s."""

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

# Percent of the ideal wire, streamed, slackline over TCP: at least, in the order of SIZES.
WIRE_TARGETS = {1: (98.5, 98.5, 98.5, 98.5), 5: (99.0, 99.0, 92.0, 92.0)}

# What a prototype published for gloo, one call at a time, in the order of SIZES.
PUBLISHED_GLOO = {1: (11, 82, 93, 97), 5: (3, 39, 64, 68)}

TWO_NICS_OVER_ONE = 1.95
TWO_NIC_RATES = (GBIT, GBIT // 5)
CUT_OVER_ALLOWED = 1.1
"""Of the time that the bandwidth allows which is left after a NIC was cut in the middle."""
RECOVERY_SECONDS = 2.0
RECOVERED_SHARE = 0.95
"""Of the throughput before the cut; within RECOVERY_SECONDS of the NIC's return."""
LOSS_SHARE = 0.90
"""Of the loss-free throughput, at 1 % loss on every link, over UDP."""
