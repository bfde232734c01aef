"""Traces: files with the values of all wires of a simulated circuit in given cycles."""

import itertools
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from slackline.env import circuit_trace
from slackline.errors import UsageError

__all__ = ["Trace", "trace_of_environment"]

_SUFFIX = ".vcd"
_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """A VCD file that a simulation writes; cycle n begins at n ns of the file's time."""

    file: Path
    """The file; a file of the same name is replaced."""
    cycles: range = range(sys.maxsize)
    """The cycles that are written, each one; the default is all of them."""

    def __post_init__(self) -> None:
        if self.file.suffix != _SUFFIX:
            raise UsageError(f"a trace is a file whose name ends with .vcd, not {self.file}")
        if self.cycles.step != 1 or not self.cycles:
            raise UsageError(f"a trace needs at least one cycle, in steps of 1, not {self.cycles}")


def trace_of_environment(circuit: str) -> Trace | None:
    """Return the trace that SLACKLINE_CIRCUIT_TRACE asks for, for the process's next simulation.

    Processes and simulations have a file each: `nic.vcd` becomes `nic-ring-4711-1.vcd`, named after
    the circuit, the process and the simulation.
    """
    asked = circuit_trace()
    if asked is None:
        return None
    file, cycles = asked
    stem = f"{file.stem}-{circuit}-{os.getpid()}-{next(_numbers)}"
    return Trace(file=file.with_stem(stem), cycles=cycles)
