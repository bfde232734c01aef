"""Messages through a simulated node at the pace of an Ethernet, for assumed clock rates.

A MAC of 10 Gb/s has a stream of 64 bits at 156.25 MHz, a MAC of 100 Gb/s one of 512 bits at 322.27
MHz. Cycles are simulated. No device is shown to reach these clock rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from _harness.report import Row
from node_runs import NodeBench

from slackline.circuit import NodeOptions
from slackline.wire import HEADER_BYTES

ETHERNET_BYTES = 8 + 14 + 4 + 12
"""The bytes of Ethernet around each frame: preamble, addresses and type, check sequence, gap."""
KIB = 1 << 10
SIZES = (1, 4, 16, 64, 256, 1024)
"""The sizes of messages in KiB."""


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A kind of Ethernet, and the frames that are sent over it."""

    name: str
    bits_per_s: float
    clock_hz: float
    options: NodeOptions
    payload: int

    @property
    def frame_bytes(self) -> int:
        """The bytes of the wire that a frame takes."""
        return ETHERNET_BYTES + HEADER_BYTES + self.payload

    @property
    def share(self) -> float:
        """The percentage of the wire that is payload."""
        return 100 * self.payload / self.frame_bytes

    @property
    def cycles_a_frame(self) -> float:
        return self.frame_bytes * 8 / self.bits_per_s * self.clock_hz


NARROW = NodeOptions(ports=4, lanes=2, slots=8, payload_bytes=2048)
WIDE = NodeOptions(ports=4, lanes=16, slots=16, payload_bytes=8192)
WIRES = (
    Wire(name="10 GbE", bits_per_s=10e9, clock_hz=156.25e6, options=NARROW, payload=1408),
    Wire(name="100 GbE", bits_per_s=100e9, clock_hz=322.27e6, options=WIDE, payload=1408),
    Wire(name="100 GbE, jumbo", bits_per_s=100e9, clock_hz=322.27e6, options=WIDE, payload=8192),
)


def wire_rows() -> list[Row]:
    """Measure messages of each size; return rates, and the cycles of the first and last sum."""
    rows = []
    for options in (NARROW, WIDE):
        with NodeBench(options) as bench:
            for wire in (each for each in WIRES if each.options == options):
                rows += [_row(bench, wire, size * KIB) for size in SIZES]
    return rows


def _row(bench: NodeBench, wire: Wire, size: int) -> Row:
    frames = -(-size // wire.payload)
    payload = min(wire.payload, size)
    run = bench.run(frames, threshold=1, payload=payload, cycles_a_frame=wire.cycles_a_frame)
    seconds = run.last / wire.clock_hz
    gbps = frames * payload * 8 / seconds / 1e9
    return Row(
        labels={"wire": wire.name, "message": f"{size // KIB} KiB", "payload": payload},
        values={
            "frames": frames,
            "first_cycles": run.first,
            "last_cycles": run.last,
            "Gb_per_s": round(gbps, 3),
            "percent_of_wire": round(100 * gbps * 1e9 / wire.bits_per_s, 2),
            "framing_allows": round(wire.share, 2),
        },
    )
