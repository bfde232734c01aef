"""An aggregation node whose ranks keep to its window: cycles a beat by the wire's delay.

A rank has at most as many frames under way as the node has slots at each port: the next frame
leaves when a sum has arrived. Every sum is compared with the sum that the frames must give.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackline.circuit import NodeOptions, Simulation, cached_node, node_registers
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, encode

FRAMES = 64
"""The frames of a run, or twice the slots if that is more."""
WIRES = (0, 16, 64, 161, 322)
"""Delays of the wire each way, in cycles; 161 cycles are 0.5 us at 322 MHz, or 100 m of fibre."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The node's rate with one wire."""

    wire: int
    cycles_per_beat: float
    needed_slots: float
    """The slots that the rule asks for: 2 + (2 wire + 12 ports) / beats of a frame."""
    expected: float
    """The cycles a beat by the rule of the round trip; 1 with the slots of the rule."""


def needed_slots(options: NodeOptions, wire: int) -> float:
    """Return the slots that give a beat of sums in each cycle, by the rule of the page."""
    beats = options.header_beats + options.slot_beats
    return 2 + (2 * wire + 12 * options.ports) / beats


def expected_cycles(options: NodeOptions, wire: int) -> float:
    """Return the cycles a beat that the round trip allows with these slots, at least 1."""
    beats = options.header_beats + options.slot_beats
    round_trip = 2 * wire + 2 * beats + 12 * options.ports
    return max(1.0, round_trip / (options.slots * beats))


def rate(options: NodeOptions, wire: int) -> Rate:
    """Run FRAMES frames through a node whose ranks are `wire` cycles away, each way."""
    beats = options.header_beats + options.slot_beats
    frames = max(FRAMES, 2 * options.slots)
    slots = options.slots
    _, ends = run(options, wire, frames)
    cycles = (ends[-1] - ends[slots - 1]) / ((frames - slots) * beats)
    return Rate(
        wire=wire,
        cycles_per_beat=cycles,
        needed_slots=needed_slots(options, wire),
        expected=expected_cycles(options, wire),
    )


def message_cycles(options: NodeOptions, wire: int, frames: int) -> int:
    """Return the cycles from a message's first beat at the ranks to its last sum there."""
    start, ends = run(options, wire, frames)
    return ends[-1] + wire - start


def run(options: NodeOptions, wire: int, frames: int) -> tuple[int, list[int]]:
    """Send frames of all ranks; return the first cycle, and those in which the sums have left.

    Raises AssertionError if a sum is wrong.
    """
    at = {each.name: each.address for each in node_registers(options)}
    expected = np.full(
        options.payload_bytes // 4, options.ports * (options.ports + 1) / 2, np.float32
    ).tobytes()
    with Simulation(cached_node(options)) as node:
        node.write(at["control"], 1)
        start = node.step(0)

        def send(number: int, when: int) -> None:
            for port in range(options.ports):
                node.send(port, frame(options, port, number), not_before=when)

        for number in range(1, min(options.slots, frames) + 1):
            send(number, start + wire)
        ends: list[int] = []
        while len(ends) < frames:
            node.step(8)
            for found, _, last in node.frames(0):
                if found[64:] != expected:
                    raise AssertionError(f"sum {len(ends)} is wrong")
                ends.append(last)
                if len(ends) + options.slots <= frames:
                    # The sum takes the wire to the rank, and the rank's next frame takes it back.
                    send(len(ends) + options.slots, last + 2 * wire)
            for port in range(1, options.ports):
                node.frames(port)
    return start, ends


def frame(options: NodeOptions, port: int, number: int) -> bytes:
    """Return frame `number` of a rank, one message of float32 of the longest payload."""
    size = options.payload_bytes
    header = Header(
        kind=FrameKind.DATA,
        source=port,
        dtype=DType.FLOAT32,
        collective=Collective.ALL_REDUCE,
        reduce_op=ReduceOp.SUM,
        sequence=number,
        total=size,
        length=size,
    )
    return encode(header) + np.full(size // 4, port + 1, np.float32).tobytes()
