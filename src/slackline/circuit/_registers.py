"""Descriptions of a circuit's registers, the source of its gateware, C header and table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slackline.circuit._options import NodeOptions

__all__ = ["Register", "c_header", "node_registers", "numbered", "register_table"]


@dataclass(frozen=True, kw_only=True)
class Register:
    """A register of 32 bits on the circuit's bus."""

    name: str
    address: int
    """Bytes from the start of the registers."""
    kind: str
    """How a host uses the register. A "setting" is read and written. A "counter" is read, counts up
    and wraps. A "constant" and a "state" are read. A "doorbell" is written, and reads as what the
    circuit made of the written value."""
    meaning: str
    value: int = 0
    """A setting's value after reset, or a constant's value."""


_IDENTITY = 0x534C4E44
_SETTINGS = (
    ("control", 0, "bit 0: takes frames; while it is 0 buffers and sequence numbers are reset"),
    ("job", 0, "the job that frames must carry"),
    ("epoch", 0, "the epoch that frames must carry"),
    ("source", 0xFFFF, "the source that reduced frames carry"),
    (
        "threshold",
        1,
        "onset: frames in every port's buffer before a message's reduction starts; 0: all of them",
    ),
    ("local_ports", 0, "a bit a port: it is of this host, so its lack of data is no_local_data"),
)
_COUNTERS = (
    ("frames", "reduced frames begun"),
    ("busy", "cycles in which the adders or the header path began a beat"),
    ("adder", "stalls: the lanes take a beat's second half, or headers are compared"),
    ("no_credit", "stalls: no room for a result behind the adders"),
    ("no_local_data", "stalls within a message: a local port's buffer is empty, no peer's is"),
    ("no_peer_data", "stalls within a message: a peer's buffer is empty"),
    ("onset", "stalls before a message: frames are there, the threshold is not reached"),
    ("mismatched", "frames at the heads of all ports that did not agree, dropped on all"),
    ("resent", "sums given again to a rank that sent its part again"),
    ("forced", "messages begun below the threshold, since a buffer was full"),
)
_PORT_COUNTERS = (
    ("accepted", "frames taken"),
    ("malformed", "frames dropped: damaged, cut, too long, or not to be reduced here"),
    ("foreign", "frames dropped: another job, epoch or rank"),
    ("repeated", "frames dropped: they came before; their sums are given again"),
    ("unordered", "frames dropped: not the next in sequence, and none of the last"),
    ("starved", "stalls within a message: this port's buffer is empty"),
)
_PORTS_AT, _PORT_BYTES = 0x100, 0x20


def numbered(
    constants: Iterable[tuple[str, str, int]],
    settings: Iterable[tuple[str, int, str]],
    counters: Iterable[tuple[str, str]],
) -> tuple[Register, ...]:
    """Return registers at consecutive addresses from 0 on, made from rows of names and meanings."""
    found = [
        *((name, "constant", meaning, value) for name, meaning, value in constants),
        *((name, "setting", meaning, value) for name, value, meaning in settings),
        *((name, "counter", meaning, 0) for name, meaning in counters),
    ]
    return tuple(
        Register(name=name, address=4 * k, kind=kind, meaning=meaning, value=value)
        for k, (name, kind, meaning, value) in enumerate(found)
    )


def node_registers(options: NodeOptions) -> tuple[Register, ...]:
    """Return the registers of an aggregation node, by address."""
    constants = [
        ("identity", "0x534C4E44", _IDENTITY),
        ("ports", "ports of this node", options.ports),
        ("lanes", "words of 32 bits in a beat", options.lanes),
        ("slots", "frames in a port's buffer", options.slots),
        ("payload_bytes", "the longest payload", options.payload_bytes),
    ]
    table = list(numbered(constants, _SETTINGS, _COUNTERS))
    for port in range(options.ports):
        table += [
            Register(
                name=f"port{port}_{name}",
                address=_PORTS_AT + _PORT_BYTES * port + 4 * k,
                kind="counter",
                meaning=f"port {port}: {meaning}",
            )
            for k, (name, meaning) in enumerate(_PORT_COUNTERS)
        ]
    return tuple(table)


def c_header(registers: Sequence[Register], circuit: str = "node") -> str:
    """Return a C header with the registers' addresses and reset values, named after `circuit`."""
    return "\n".join(_c_lines(registers, circuit.upper())) + "\n"


def _c_lines(registers: Sequence[Register], circuit: str) -> Iterable[str]:
    yield "/* The circuit's registers, 32 bits each: written by `slackline circuit verilog`. */"
    yield "#pragma once"
    for each in registers:
        name = f"SLACKLINE_{circuit}_{each.name.upper()}"
        yield ""
        yield f"/* {each.kind}: {each.meaning} */"
        yield f"#define {name} 0x{each.address:03X}u"
        if each.kind in ("setting", "constant"):
            end = "RESET" if each.kind == "setting" else "VALUE"
            yield f"#define {name}_{end} 0x{each.value:X}u"


def register_table(registers: Sequence[Register]) -> str:
    """Return the registers as a table in Markdown."""
    lines = ["| address | register | kind | meaning |", "|---|---|---|---|"]
    lines += [
        f"| 0x{each.address:03X} | {each.name} | {each.kind} | {each.meaning} |"
        for each in registers
    ]
    return "\n".join(lines) + "\n"
