"""`slackline circuit`: the circuits as Verilog, and what they take of an FPGA."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackline.errors import UsageError
from slackline.units import parse_bytes

if TYPE_CHECKING:
    from slackline.circuit import NodeOptions, RingOptions, Verilog

__all__ = ["app"]

app = typer.Typer(help="Circuits that reduce.", no_args_is_help=True, add_completion=False)

Lanes = Annotated[int, typer.Option(help="Words of 32 bits in a beat.")]
Ports = Annotated[int, typer.Option(help="Ranks around the node.")]
Slots = Annotated[int, typer.Option(help="Frames in a port's buffer.")]
Payload = Annotated[str, typer.Option(help="The longest payload of a frame.")]


@app.callback()
def _group() -> None: ...


@app.command()
def verilog(
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
    lanes: Lanes = 16,
    ports: Ports = 4,
    slots: Slots = 4,
    payload: Payload = "8KiB",
    ahead: Annotated[
        int,
        typer.Option(help="Beats that a ring NIC reads ahead; 0: of four of the longest frames."),
    ] = 0,
) -> None:
    """Write node, ring NIC, lanes and Ethernet port behind AXI, with registers in C and tables."""
    from slackline import circuit

    options = circuit.NodeOptions(
        lanes=lanes, ports=ports, slots=slots, payload_bytes=parse_bytes(payload)
    )
    for path in circuit.export(options, _ring(options, ahead), out):
        print(path)


def _ring(options: NodeOptions, ahead: int = 0) -> RingOptions:
    """A ring NIC as wide as a node, with as many slots for frames of the same size."""
    from slackline import circuit

    return circuit.RingOptions(
        lanes=options.lanes,
        slots=min(options.slots, 64),
        payload_bytes=max(options.payload_bytes, 128),
        ahead_beats=ahead,
    )


@app.command()
def report(
    circuits: Annotated[
        str, typer.Option("--circuits", help="Of adder, lanes, node, ring, with commas.")
    ] = "adder,lanes",
    families: Annotated[str, typer.Option(help="Of xcup, xc7, ecp5, with commas.")] = "xcup,xc7",
    clock: Annotated[bool, typer.Option(help="Place and route on an ECP5 too.")] = True,
    lanes: Lanes = 16,
    ports: Ports = 4,
    slots: Slots = 4,
    payload: Payload = "8KiB",
) -> None:
    """Count what circuits take of an FPGA; wide ones take Yosys minutes."""
    from slackline import circuit

    options = circuit.NodeOptions(
        lanes=lanes, ports=ports, slots=slots, payload_bytes=parse_bytes(payload)
    )
    known: dict[str, tuple[str, Callable[[], Verilog]]] = {
        "adder": ("one adder", lambda: circuit.convert("adder", circuit.Adder())),
        "lanes": (f"{lanes} lanes", lambda: circuit.convert("lanes", circuit.Lanes(lanes))),
        "node": (
            f"node, {ports} ports, {lanes} lanes",
            lambda: circuit.convert("node", circuit.AggregationNode(options)),
        ),
        "ring": (
            f"ring NIC, {lanes} lanes",
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
                alike = ", ".join(f"{count} {part}" for part, count in parts.items())
                print(f"  added up: one of each and the rest were synthesised, of {alike}")
            if name == "adder":
                levels = " ".join(map(str, circuit.logic_levels(made, family)))
                print(f"  levels of logic in its stages: {levels}")
        if clock and name in ("adder", "lanes"):
            reached = circuit.clock_mhz(made)
            said = "nextpnr-ecp5 is not installed" if reached is None else f"{reached:.0f} MHz"
            print(f"{title.ljust(24)}  ECP5-85F, speed 8, by nextpnr: {said}")
