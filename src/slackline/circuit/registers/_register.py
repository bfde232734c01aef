"""Descriptions of a circuit's registers, the source of its gateware, C header and table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Register", "c_header", "numbered", "register_table"]


@dataclass(frozen=True, kw_only=True)
class Register:
    """A register of 32 bits on the circuit's bus."""

    name: str
    address: int
    """Bytes from the start of the registers."""
    kind: str
    """The use of the register by a host. A "setting" is read and written. A "counter" is read,
    counts up and wraps. A "constant" and a "state" are read. A "doorbell" is written, and reads as
    the value that the circuit derived from the written value."""
    meaning: str
    value: int = 0
    """A setting's value after reset, or a constant's value."""


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
