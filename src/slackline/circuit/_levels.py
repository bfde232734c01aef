"""How many cells a signal passes from register to register, stage by stage of a pipeline."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackline.errors import UsageError

__all__ = ["stage_levels"]

_REGISTER = re.compile(r"FD[RSCP]E|TRELLIS_FF")
_CLOCKS = ("C", "CLK")
_NO_LEVEL = ("INV",)
"""Taken into the look-up table behind them."""


@dataclass(frozen=True)
class _Reach:
    """The longest way to a wire: registers from the inputs on, cells from the last of them on."""

    stage: int
    levels: int


_START = _Reach(0, 0)


def stage_levels(netlist: str, top: str) -> tuple[int, ...]:
    """For each stage the most cells of any kind between two registers, or from an input.

    `netlist` is what Yosys's write_json says of a flat circuit. A stage is told by the number of
    registers between the inputs and it. Raises UsageError when a register follows itself: that is
    no pipeline.
    """
    module = json.loads(netlist)["modules"][top]
    drivers = _drivers(module["cells"])
    found: dict[object, _Reach] = {}
    longest: dict[int, int] = {}
    for cell in module["cells"].values():
        if _REGISTER.fullmatch(cell["type"]):
            before = _arrival(_inputs(cell), drivers, found)
            longest[before.stage] = max(longest.get(before.stage, 0), before.levels)
    return tuple(longest[stage] for stage in sorted(longest))


def _drivers(cells: Mapping[str, Any]) -> dict[object, Any]:
    """By wire: the cell that drives it."""
    return {
        wire: cell
        for cell in cells.values()
        for port, wires in cell["connections"].items()
        if cell["port_directions"][port] == "output"
        for wire in wires
    }


def _inputs(cell: Any) -> list[object]:
    """The wires that decide what the cell gives."""
    return [
        wire
        for port, wires in cell["connections"].items()
        if cell["port_directions"][port] == "input" and port not in _CLOCKS
        for wire in wires
    ]


def _arrival(
    wires: Sequence[object], drivers: Mapping[object, Any], found: dict[object, _Reach]
) -> _Reach:
    """The latest of these wires. Wires that nothing drives are inputs or constants."""
    waiting = list(wires)
    open_wires: set[object] = set()
    while waiting:
        wire = waiting[-1]
        if wire in found or wire not in drivers:
            waiting.pop()
            continue
        cell = drivers[wire]
        before = _inputs(cell)
        missing = [each for each in before if each not in found and each in drivers]
        if missing and wire in open_wires:
            raise UsageError("a register follows itself: this is no pipeline with stages")
        if missing:
            open_wires.add(wire)
            waiting += missing
            continue
        found[wire] = _behind(cell, _latest([found.get(each, _START) for each in before]))
        waiting.pop()
    return _latest([found.get(wire, _START) for wire in wires])


def _latest(reaches: Sequence[_Reach]) -> _Reach:
    """The last stage among them, and the longest way."""
    return _Reach(
        max((each.stage for each in reaches), default=0),
        max((each.levels for each in reaches), default=0),
    )


def _behind(cell: Any, before: _Reach) -> _Reach:
    if _REGISTER.fullmatch(cell["type"]):
        return _Reach(before.stage + 1, 0)
    return _Reach(before.stage, before.levels + (cell["type"] not in _NO_LEVEL))
