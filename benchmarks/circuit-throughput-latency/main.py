"""Simulate lanes, the aggregation node and the ring NIC: cycles a beat, latency, onset, jitter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from _harness.machine import describe_machine
from _harness.options import Options, parse
from _harness.report import Report, Row, Scalar, Target
from allreduce_runs import AllReduceBench, allreduce_rows
from closed_loop import WIRES, message_cycles, rate
from node_runs import Jitter, NodeBench
from rich.table import Table
from ring_runs import RingBench
from wire_runs import wire_rows
from wired_node import packet_rows

from slackline import circuit
from slackline.circuit import Element, NodeOptions, RingOptions
from slackline.errors import UsageError

FULL = tuple(NodeOptions(ports=ports, lanes=16, slots=64, payload_bytes=1024) for ports in (4, 8))
QUICK = (NodeOptions(ports=2, lanes=2, slots=64, payload_bytes=128),)
CLOSED = tuple(
    NodeOptions(ports=2, lanes=lanes, slots=slots, payload_bytes=payload)
    for lanes, slots, payload in (
        (4, 4, 1024),
        (4, 16, 1024),
        (16, 4, 1024),
        (16, 32, 1024),
        (16, 4, 8192),
    )
)
"""The nodes whose rates are measured with ranks that keep to the window."""
SIZES = {
    "ports": "measure a node with this many ports alone",
    "lanes": "measure a node with this many words of 32 bits in a beat alone",
    "slots": "measure a node with this many frames in a port's buffer alone",
    "payload": "measure a node whose frames have payloads of this many bytes alone",
    "wires": "measure with these delays of a wire, in cycles each way: 0,161",
}
"""The options that choose another node."""
MESSAGES = (1, 4, 16, 64)
"""The numbers of frames in a message; the last one fills the buffers."""
THRESHOLDS = (1, 2, 4, 8, 16)
JITTERS = (0, 4, 16)
"""The largest delay of a frame, in multiples of the time that a frame takes."""
SEEDS = 5
KEEPS_UP, STORED_OVER_CUT = 1 / 0.98, 1.8
"""The most cycles for a beat, and the least ratio of store-and-forward to cut-through."""
BY_RULE = 1.05
"""The most cycles for a beat, over those that the rule of window and wire gives."""
MESSAGE_NODE = NodeOptions(ports=2, lanes=16, slots=16, payload_bytes=1024)
MESSAGE_FRAMES = (1, 4, 16, 64, 256, 1024)
"""The node and the messages whose throughput is measured by the delay of the wire."""
CLOCK_MHZ = 322
"""The clock of a 100 Gb/s MAC."""
BEATS = 2000
RING_FULL = RingOptions(lanes=16, slots=8, payload_bytes=8192)
RING_QUICK = RingOptions(lanes=1, slots=8, payload_bytes=256, operations=8)
RING_AHEAD = RingOptions(lanes=16, slots=64, payload_bytes=1024, ahead_beats=512)
"""The options of a ring NIC built for short frames and for memory with a long latency."""
RING_PAYLOADS = (64, 256, 1024, 8192)
RING_FRAMES = 64
RING_MEMORY = 300
"""The latency of distant memory in cycles: about 1 us at the clock of a 100 Gb/s MAC."""
KIB = 1 << 10
RING_MESSAGES = (
    *((size * KIB, KIB) for size in (4, 16, 64, 256)),
    *((size * KIB, 8 * KIB) for size in (64, 256, 1024)),
)
"""The messages of all-reduces: their bytes, and the bytes of payload in a frame."""
RING_MESSAGES_QUICK = ((4 * KIB, 256),)
OVER_LINK = 1.05
"""The largest allowed multiple of the link's own time, for the longest message at 100 Gb/s."""
PACKET_FRAMES, PACKET_FRAMES_QUICK = 20_000, 500
"""The frames of each rank through a simulated node on a virtual interface."""
MOST_PACKET_US, LEAST_CYCLES_A_SECOND = 10.0, 250_000.0
"""The node's own processor time for a packet, and the cycles that a second of it simulates."""
NOTES = (
    "All of this is counted in cycles of a simulation; no board has run the circuit.",
    "Ports are fed a beat a cycle. What a cycle takes depends on the device and on timing closure.",
)


def messages_of(options: NodeOptions) -> tuple[int, ...]:
    """Return the numbers of frames in a message that fit into a port's buffer."""
    return tuple(each for each in MESSAGES if each <= options.slots)


def lane_rows(counts: tuple[int, ...]) -> list[Row]:
    """Measure bare lanes, which are adders of words of 32 bits: pairs of beats in, sums out."""
    rows = []
    for count in counts:
        verilog = circuit.convert("lanes", circuit.Lanes(count))
        with circuit.Simulation(verilog) as simulation:
            for element in Element:
                beats = np.zeros((BEATS, 8 * count + 1), np.uint8)
                beats[:, -1] = element
                start = simulation.step(0)
                simulation.push(0, beats)
                results = BEATS * (2 if element.half else 1)
                simulation.run(results, cycles=10 * BEATS)
                cycles = simulation.pull(0)[1]
                values = {
                    "latency_cycles": int(cycles[0]) - start,
                    "cycles_per_beat": (int(cycles[-1]) - int(cycles[0]) + 1) / BEATS,
                }
                labels = {"lanes": count, "element": element.name.lower()}
                rows.append(Row(labels=labels, values=values))
    return rows


def size_rows(bench: NodeBench) -> list[Row]:
    """Measure a node's cut-through forwarding against store-and-forward."""
    rows = []
    for frames in messages_of(bench.options):
        cut, stored = (bench.run(frames, threshold=each) for each in (1, 0))
        values = {
            "first_cut": cut.first,
            "last_cut": cut.last,
            "first_stored": stored.first,
            "last_stored": stored.last,
            "stored_over_cut": stored.last / cut.last,
            "cycles_per_beat": cut.cycles_per_beat,
        }
        size = frames * bench.options.payload_bytes
        labels = {"ports": bench.options.ports, "frames": frames, "bytes": size}
        rows.append(Row(labels=labels, values=values))
    return rows


def closed_rows(nodes: tuple[NodeOptions, ...], wires: tuple[int, ...]) -> list[Row]:
    """Measure nodes whose ranks keep to the window, over wires with these delays."""
    rows = []
    for options in nodes:
        for wire in wires:
            found = rate(options, wire)
            labels = {
                "ports": options.ports,
                "lanes": options.lanes,
                "slots": options.slots,
                "payload_bytes": options.payload_bytes,
                "wire_cycles": wire,
            }
            values = {
                "cycles_per_beat": found.cycles_per_beat,
                "by_rule": found.expected,
                "needed_slots": found.needed_slots,
            }
            rows.append(Row(labels=labels, values=values))
    return rows


def message_rows() -> list[Row]:
    """Measure the throughput of whole messages, by size and delay of the wire."""
    rows = []
    for frames in MESSAGE_FRAMES:
        size = frames * MESSAGE_NODE.payload_bytes
        for wire in WIRES:
            cycles = message_cycles(MESSAGE_NODE, wire, frames)
            labels = {"message_bytes": size, "wire_cycles": wire}
            values = {"cycles": cycles, "gbit_s": 8 * size * CLOCK_MHZ / cycles / 1000}
            rows.append(Row(labels=labels, values=values))
    return rows


def jitter_rows(bench: NodeBench) -> list[Row]:
    """Measure the node with different onset thresholds, against senders with random delays.

    An onset threshold is the number of frames buffered per port before reduction starts.
    """
    rows = []
    for latest in JITTERS:
        for threshold in (each for each in THRESHOLDS if each <= bench.options.slots):
            runs = [
                bench.run(64, threshold=threshold, jitter=Jitter(frames=latest, seed=seed))
                for seed in range(SEEDS)
            ]
            values = {
                "first": sum(run.first for run in runs) / SEEDS,
                "last": sum(run.last for run in runs) / SEEDS,
                "starved": sum(run.starved for run in runs) / SEEDS,
            }
            labels = {
                "ports": bench.options.ports,
                "late_up_to_frames": latest,
                "threshold": threshold,
            }
            rows.append(Row(labels=labels, values=values))
    return rows


def ring_rows(bench: RingBench) -> list[Row]:
    """Measure a ring NIC with frames of growing size: single, in messages, partials and sums."""
    rows = []
    # The number of frames exceeds the slots, so that slots must be reused.
    frames = max(RING_FRAMES, 2 * bench.options.slots)
    for payload in RING_PAYLOADS:
        if not bench.options.beat_bytes <= payload <= bench.options.payload_bytes:
            continue
        alone, message = bench.run(1, payload), bench.run(frames, payload)
        far = bench.run(frames, payload, latency=RING_MEMORY)
        values = {
            "first_alone": alone.first,
            "first_of_message": message.first,
            "cycles_per_beat": message.cycles_per_beat,
            "cycles_per_beat_far_memory": far.cycles_per_beat,
            "cycles_per_beat_both": bench.run_both(RING_FRAMES, payload),
        }
        options = bench.options
        labels = {
            "slots": options.slots,
            "ahead_beats": options.read_beats,
            "payload_bytes": payload,
            "frames": frames,
        }
        rows.append(Row(labels=labels, values=values))
    return rows


def speed_rows(bench: RingBench) -> list[Row]:
    """Measure how fast this machine simulates a ring NIC.

    No other figure depends on the machine.
    """
    frames, cycles = bench.speed(RING_FRAMES)
    labels = {"lanes": bench.options.lanes, "payload_bytes": bench.options.payload_bytes}
    return [Row(labels=labels, values={"frames_per_s": frames, "cycles_per_s": cycles})]


def table(title: str, rows: list[Row]) -> Table:
    """Return a table of the rows, with a column for each key."""
    keys = list(rows[0].as_json())
    made = Table(*(key.replace("_", " ") for key in keys), title=title)
    for row in rows:
        cells = row.as_json()
        made.add_row(*(text(cells.get(key, "-")) for key in keys))
    return made


def text(value: object) -> str:
    """Format a figure as the tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def node_targets(rows: list[Row]) -> list[Target]:
    """Return the targets of the longest message, for each number of ports."""
    targets = []
    for row in (each for each in rows if each.labels["frames"] == MESSAGES[-1]):
        ports = f"{row.labels['ports']} ports"
        targets += [
            at_most(f"{ports}: cycles a beat of sums, headers included", row, "cycles_per_beat"),
            Target(
                name=f"{ports}: store-and-forward over cut-through, {MESSAGES[-1]} frames",
                target=STORED_OVER_CUT,
                measured=float(row.values["stored_over_cut"]),
            ),
        ]
    return targets


def closed_targets(rows: list[Row]) -> list[Target]:
    """Return the targets of ranks that keep to the window: the rate that the rule gives."""
    return [
        at_most(
            "{ports} ports, {lanes} lanes, {slots} slots of {payload_bytes} B, wire of "
            "{wire_cycles} cycles: cycles a beat".format(**row.labels),
            row,
            "cycles_per_beat",
            BY_RULE * float(row.values["by_rule"]),
        )
        for row in rows
    ]


def ring_targets(rows: list[Row]) -> list[Target]:
    """Return the targets of the longest frames through a ring NIC."""
    names = {
        "cycles_per_beat": "ring NIC: cycles a beat, headers included, longest frames",
        "cycles_per_beat_both": "ring NIC: the same for partials and sums in turns",
    }
    return [at_most(name, rows[-1], key) for key, name in names.items()]


def packet_targets(rows: list[Row]) -> list[Target]:
    """Return the targets of a simulated node on an interface, which needs root."""
    values = rows[0].values
    packet, cycles = values.get("us_a_packet"), values.get("cycles_a_second")
    return [
        Target(
            name="node on an interface: processor time of a packet beside its cycles, us",
            target=MOST_PACKET_US,
            measured=None if packet is None else float(packet),
            bound="at most",
        ),
        Target(
            name="node on an interface: simulated cycles in a second of processor time",
            target=LEAST_CYCLES_A_SECOND,
            measured=None if cycles is None else float(cycles),
        ),
    ]


def allreduce_targets(rows: list[Row]) -> list[Target]:
    """Return the targets of the longest message over the slower wire.

    The adders are as fast as this wire.
    """
    last = rows[-1]
    if last.labels["wire"] != "100 Gb/s":
        return []
    return [
        at_most(f"{name} over its link's own time, 1 MiB at 100 Gb/s", last, key, OVER_LINK)
        for name, key in (
            ("reduce-broadcast ring", "reduce_broadcast_over_link"),
            ("rotating ring", "rotating_over_link"),
        )
    ]


def at_most(name: str, row: Row, key: str, most: float = KEEPS_UP) -> Target:
    """Return a target: a row's value is at most `most`, by default about one cycle for a beat."""
    return Target(name=name, target=most, measured=float(row.values[key]), bound="at most")


def main() -> None:
    """Run the simulations and print the report."""
    options = parse(__doc__ or "", values=SIZES)
    machine = describe_machine()
    reason = circuit.missing_tools()
    if reason is not None:
        rows = [Row(labels={"part": part}, skipped=reason) for part in ("lanes", "node", "ring")]
        names = ("node: cycles a beat of sums", "ring NIC: cycles a beat")
        targets = [
            Target(name=name, target=KEEPS_UP, measured=None, bound="at most") for name in names
        ]
        Report(rows=rows, targets=targets, machine=machine).print([table("", rows)], options)
        return
    if options.values:
        one_node(options, machine)
        return
    lanes = lane_rows((1,) if options.quick else (1, 4, 16))
    sizes: list[Row] = []
    jitters: list[Row] = []
    for each in QUICK if options.quick else FULL:
        with NodeBench(each) as bench:
            sizes += size_rows(bench)
            jitters += jitter_rows(bench)
    wires = (
        [Row(labels={"part": "wires"}, skipped="left out by --quick")]
        if options.quick
        else wire_rows()
    )
    ring_options = RING_QUICK if options.quick else RING_FULL
    with RingBench(ring_options) as ring:
        rings, speeds = ring_rows(ring), speed_rows(ring)
    if not options.quick:
        with RingBench(RING_AHEAD) as ring:
            rings = [*ring_rows(ring), *rings]
    with AllReduceBench(ring_options) as nics:
        if options.quick:
            reduces = allreduce_rows(nics, RING_MESSAGES_QUICK, {"a beat a cycle": 0})
        else:
            reduces = allreduce_rows(nics, RING_MESSAGES)
    closed = closed_rows(QUICK if options.quick else CLOSED, WIRES)
    packets = packet_rows(PACKET_FRAMES_QUICK if options.quick else PACKET_FRAMES)
    messages = (
        [Row(labels={"part": "messages"}, skipped="left out by --quick")]
        if options.quick
        else message_rows()
    )
    tables = [
        table("lanes", lanes),
        table("cycles from a message's first beat in to its first and last beat of sums", sizes),
        table("messages at the pace of an Ethernet, if timing closes at its MAC's clock", wires),
        table("ranks that keep to the window: cycles a beat by the wire's delay", closed),
        table("messages of ranks that keep to the window: Gb/s at 322 MHz by the wire", messages),
        table("onset threshold against jitter: the same, and cycles starved on the way", jitters),
        table("ring NIC: cycles from the first beat in to the first out, and a beat", rings),
        table("ring NICs: cycles of an all-reduce, and over what its link takes alone", reduces),
        table("ring NIC, simulated by this machine", speeds),
        table("simulated node on a virtual interface", packets),
    ]
    rows = [
        *lanes,
        *sizes,
        *closed,
        *messages,
        *wires,
        *jitters,
        *rings,
        *reduces,
        *speeds,
        *packets,
    ]
    targets = [
        *node_targets(sizes),
        *closed_targets(closed),
        *ring_targets(rings),
        *allreduce_targets(reduces),
        *packet_targets(packets),
    ]
    report = Report(rows=rows, targets=targets, machine=machine)
    report.print(tables, options, NOTES)


def one_node(options: Options, machine: Mapping[str, Scalar]) -> None:
    """Measure the node that the options choose, and print the report."""
    given = options.values
    try:
        node = NodeOptions(
            ports=int(given.get("ports", "2")),
            lanes=int(given.get("lanes", "4")),
            slots=int(given.get("slots", "4")),
            payload_bytes=int(given.get("payload", "1024")),
        )
        wires = (
            tuple(int(each) for each in given["wires"].split(",")) if "wires" in given else WIRES
        )
    except (ValueError, UsageError) as error:
        sys.exit(f"the options do not describe a node: {error}")
    with NodeBench(node) as bench:
        sizes, jitters = size_rows(bench), jitter_rows(bench)
    closed = closed_rows((node,), wires)
    tables = [
        table("cycles from a message's first beat in to its first and last beat of sums", sizes),
        table("ranks that keep to the window: cycles a beat by the wire's delay", closed),
        table("onset threshold against jitter: the same, and cycles starved on the way", jitters),
    ]
    report = Report(
        rows=[*sizes, *closed, *jitters], targets=closed_targets(closed), machine=machine
    )
    report.print(tables, options, NOTES)


if __name__ == "__main__":
    main()
