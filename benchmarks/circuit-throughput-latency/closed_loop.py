"""Simulate an aggregation node whose ranks keep to its window: cycles a beat by the wire's delay.

A rank has at most as many frames under way as the node has slots at each port: the next frame
leaves when a sum has arrived. Every sum is compared with the sum that the frames must give.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass

import numpy as np

from slackline.circuit import NodeOptions, Simulation, cached_node, missing_tools, node_registers
from slackline.wire import Collective, DType, FrameKind, Header, ReduceOp, encode

FRAMES = 64
WIRES = (0, 16, 64, 161, 322)
"""Delays of the wire each way, in cycles; 161 cycles are 0.5 us at 322 MHz, or 100 m of fibre."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """The node's rate with one wire."""

    wire: int
    cycles_per_beat: float
    needed_slots: float
    """The slots that the rule asks for: 2 + (2 wire + 12 ports) / beats of a frame."""


def needed_slots(options: NodeOptions, wire: int) -> float:
    """Return the slots that give a beat of sums in each cycle, by the rule of the page."""
    beats = options.header_beats + options.slot_beats
    return 2 + (2 * wire + 12 * options.ports) / beats


def rate(options: NodeOptions, wire: int) -> Rate:
    """Run FRAMES frames through a node whose ranks are `wire` cycles away, each way."""
    beats = options.header_beats + options.slot_beats
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

        for number in range(1, options.slots + 1):
            send(number, start + wire)
        ends: list[int] = []
        while len(ends) < FRAMES:
            node.step(8)
            for found, _, last in node.frames(0):
                if found[64:] != expected:
                    raise AssertionError(f"sum {len(ends)} is wrong")
                ends.append(last)
                if len(ends) + options.slots <= FRAMES:
                    # The sum takes the wire to the rank, and the rank's next frame takes it back.
                    send(len(ends) + options.slots, last + 2 * wire)
            for port in range(1, options.ports):
                node.frames(port)
    slots = options.slots
    cycles = (ends[-1] - ends[slots - 1]) / ((FRAMES - slots) * beats)
    return Rate(wire=wire, cycles_per_beat=cycles, needed_slots=needed_slots(options, wire))


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


def main() -> None:
    """Measure the node that the options ask for, and print a row for each wire."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ports", type=int, default=2)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--payload", type=int, default=1024, help="bytes of a frame's payload")
    parser.add_argument("--wires", default=",".join(map(str, WIRES)), help="cycles each way")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()
    if reason := missing_tools():
        sys.exit(f"the node cannot be simulated here: {reason}")
    options = NodeOptions(
        ports=asked.ports, lanes=asked.lanes, slots=asked.slots, payload_bytes=asked.payload
    )
    rates = [rate(options, int(wire)) for wire in asked.wires.split(",")]
    if asked.json:
        print(json.dumps([vars(each) for each in rates]))
        return
    print(f"{options.ports} ports, {options.lanes} lanes, {options.slots} slots, {asked.payload} B")
    for each in rates:
        print(
            f"wire {each.wire:4} cycles: {each.cycles_per_beat:5.2f} cycles a beat; "
            f"full rate needs {each.needed_slots:.1f} slots"
        )


if __name__ == "__main__":
    main()
