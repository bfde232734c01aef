"""The command `slackline circuit`: the circuits as Verilog, and the FPGA resources they need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline.errors import UsageError
from slackline.units import count, parse_bytes

if TYPE_CHECKING:
    from slackline.circuit import NodeOptions, RingOptions, Verilog
    from slackline.circuit.simulate import PacketCounts

__all__ = ["app"]

_QUIET_CYCLES, _QUIET_CYCLES_A_PORT = 64, 16
"""The cycles after which a node in which nothing moves has nothing left to do; the adders of each
port take 12 of them."""

app = typer.Typer(
    help="Export the circuits that reduce, or count their FPGA resources.",
    no_args_is_help=True,
    add_completion=False,
)

Lanes = Annotated[int, typer.Option(help="Move this many words of 32 bits in a cycle.")]
Ports = Annotated[int, typer.Option(help="Connect this many ranks to the aggregation node.")]
Slots = Annotated[int, typer.Option(help="Buffer this many frames per port.")]
Payload = Annotated[str, typer.Option(help="Accept frames with payloads of up to this many bytes.")]


@app.callback()
def _group() -> None: ...


@app.command()
def verilog(
    out: Annotated[Path, typer.Option(help="Write the files to this folder.")],
    lanes: Lanes = 16,
    ports: Ports = 4,
    slots: Slots = 4,
    payload: Payload = "8KiB",
    ahead: Annotated[
        int,
        typer.Option(
            help="Let a ring NIC read this many beats ahead; 0 reads four of the longest frames."
        ),
    ] = 0,
) -> None:
    """Write the circuits as Verilog, with register tables and a C header.

    The circuits are the aggregation node, the ring NIC, the lanes (adders) and an Ethernet port,
    each behind AXI interfaces.
    """
    from slackline import circuit

    options = circuit.NodeOptions(
        lanes=lanes, ports=ports, slots=slots, payload_bytes=parse_bytes(payload)
    )
    for path in circuit.export(options, _ring(options, ahead), out):
        print(path)


def _ring(options: NodeOptions, ahead: int = 0) -> RingOptions:
    """Return options of a ring NIC as wide as the node, with slots of the same frame size."""
    from slackline import circuit

    return circuit.RingOptions(
        lanes=options.lanes,
        slots=min(options.slots, 64),
        payload_bytes=max(options.payload_bytes, 128),
        ahead_beats=ahead,
    )


@app.command()
def node(
    interface: Annotated[
        list[str],
        typer.Option(
            help="Serve this interface; several --interface serve one port each, in order."
        ),
    ],
    ports: Ports = 2,
    lanes: Lanes = 4,
    slots: Slots = 16,
    payload: Payload = "1KiB",
    mac: Annotated[
        str, typer.Option(help="Give port 0 this MAC address, and port k the address k higher.")
    ] = "02:53:4c:00:00:00",
) -> None:
    """Run a simulated aggregation node on real interfaces, until Ctrl-C; needs root or CAP_NET_RAW.

    `slackline aggregate --node ethernet` on another host, or in another network namespace, uses it.
    """
    import signal
    import threading
    from datetime import timedelta
    from types import FrameType

    from slackline import circuit

    options = circuit.NodeOptions(
        lanes=lanes, ports=ports, slots=slots, payload_bytes=parse_bytes(payload)
    )
    if len(interface) not in (1, ports):
        raise UsageError(f"give one --interface, or one for each of {ports} ports")
    address = circuit.parse_mac(mac)
    sockets = [circuit.packet_socket(name) for name in interface]
    over = threading.Event()

    def leave(number: int, frame: FrameType | None) -> None:
        over.set()

    quiet = _QUIET_CYCLES + _QUIET_CYCLES_A_PORT * ports
    with circuit.Simulation(circuit.cached_ethernet_node(options)) as simulation:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, leave)
        shown = ", ".join(interface)
        print(
            f"node of {count(ports, 'port')} at {mac} on {shown}: {count(lanes, 'lane')}, "
            f"{count(slots, 'slot')} of {payload}",
            flush=True,
        )
        descriptors = [each.fileno() for each in sockets]
        counts = None
        while not over.is_set():
            counts = simulation.serve(
                descriptors, address, quiet=quiet, period=timedelta(milliseconds=100)
            )
    if counts is not None:
        print(
            f"{count(counts.received, 'packet')} in, {counts.sent} out, {counts.unsent} not taken, "
            f"{counts.dropped} dropped, {count(counts.cycles, 'cycle')}; processor time: "
            f"{_packet_us(counts):.1f} us a packet, and a second for "
            f"{_cycles_a_second(counts)} cycles"
        )


def _packet_us(counts: PacketCounts) -> float:
    return counts.packet_ns / max(counts.received + counts.sent, 1) / 1e3


def _cycles_a_second(counts: PacketCounts) -> int:
    return counts.cycles * 10**9 // max(counts.cycle_ns, 1)


@app.command()
def report(
    circuits: Annotated[
        str,
        typer.Option("--circuits", help="Count these, joined by commas: adder, lanes, node, ring."),
    ] = "adder,lanes",
    families: Annotated[
        str, typer.Option(help="Count for these FPGA families, joined by commas: xcup, xc7, ecp5.")
    ] = "xcup,xc7",
    clock: Annotated[
        bool,
        typer.Option(help="Also place and route adder and lanes on an ECP5, for the clock rate."),
    ] = True,
    lanes: Lanes = 16,
    ports: Ports = 4,
    slots: Slots = 4,
    payload: Payload = "8KiB",
) -> None:
    """Count the FPGA resources of circuits with Yosys; wide circuits take minutes."""
    from slackline import circuit

    options = circuit.NodeOptions(
        lanes=lanes, ports=ports, slots=slots, payload_bytes=parse_bytes(payload)
    )
    wide = count(lanes, "lane")
    known: dict[str, tuple[str, Callable[[], Verilog]]] = {
        "adder": ("one adder", lambda: circuit.convert("adder", circuit.Adder())),
        "lanes": (wide, lambda: circuit.convert("lanes", circuit.Lanes(lanes))),
        "node": (
            f"node, {count(ports, 'port')}, {wide}",
            lambda: circuit.convert("node", circuit.AggregationNode(options)),
        ),
        "ring": (
            f"ring NIC, {wide}",
            lambda: circuit.convert("ring", circuit.QueuedRingNic(_ring(options))),
        ),
    }
    version = circuit.yosys_version()
    if version is None:
        raise UsageError("Yosys is not installed (Debian: apt install yosys)")
    kinds = [field.name for field in fields(circuit.Resources)]
    print(f"Yosys {version}; cells before packing, no clock of a Xilinx device")
    print("  ".join(["circuit".ljust(24), "family", *(kind.rjust(11) for kind in kinds)]))
    for name in circuits.split(","):
        if name not in known:
            raise UsageError(f"a circuit is one of {', '.join(known)}, not {name!r}")
        title, make = known[name]
        made = make()
        for family in families.split(","):
            found, parts = circuit.resources_added_up(made, family)
            counts = (str(getattr(found, kind)).rjust(11) for kind in kinds)
            print("  ".join([title.ljust(24), family.ljust(6), *counts]))
            if parts:
                alike = ", ".join(f"{number} {part}" for part, number in parts.items())
                print(f"  added up: one of each and the rest were synthesised, of {alike}")
            if name == "adder":
                levels = " ".join(map(str, circuit.logic_levels(made, family)))
                print(f"  levels of logic in its stages: {levels}")
        if clock and name in ("adder", "lanes"):
            reached = circuit.clock_mhz(made)
            said = "nextpnr-ecp5 is not installed" if reached is None else f"{reached:.0f} MHz"
            print(f"{title.ljust(24)}  ECP5-85F, speed 8, by nextpnr: {said}")
