"""The logic depth of a pipeline: cells on the longest path between registers, stage by stage."""

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
"""Cells that add no level, since the look-up table behind such a cell absorbs the cell."""


@dataclass(frozen=True)
class _Reach:
    """The length of the longest path to a wire.

    `stage` counts the registers from the inputs on, `levels` the cells after the last register.
    """

    stage: int
    levels: int


_START = _Reach(0, 0)


def stage_levels(netlist: str, top: str) -> tuple[int, ...]:
    """Return for each pipeline stage the number of cells on the longest path to a register.

    `netlist` is the output of Yosys's write_json for a flat circuit. A path starts at a register or
    at an input, and counts cells of any kind. Stage k has k registers between the inputs and
    itself. Raises UsageError when a register feeds itself, because the circuit is then no pipeline.
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
    """Map each wire to the cell that drives it."""
    return {
        wire: cell
        for cell in cells.values()
        for port, wires in cell["connections"].items()
        if cell["port_directions"][port] == "output"
        for wire in wires
    }


def _inputs(cell: Any) -> list[object]:
    """Return the wires that determine a cell's output, except clocks."""
    return [
        wire
        for port, wires in cell["connections"].items()
        if cell["port_directions"][port] == "input" and port not in _CLOCKS
        for wire in wires
    ]


def _arrival(
    wires: Sequence[object], drivers: Mapping[object, Any], found: dict[object, _Reach]
) -> _Reach:
    """Return the latest stage of any of these wires, and the longest path within that stage.

    A wire that nothing drives is an input or a constant. Results are cached in `found`.
    """
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
            raise UsageError("a register feeds itself, so the circuit is not a pipeline")
        if missing:
            open_wires.add(wire)
            waiting += missing
            continue
        found[wire] = _behind(cell, _latest([found.get(each, _START) for each in before]))
        waiting.pop()
    return _latest([found.get(wire, _START) for wire in wires])


def _latest(reaches: Sequence[_Reach]) -> _Reach:
    """Return the latest stage and the largest number of levels among the paths."""
    return _Reach(
        max((each.stage for each in reaches), default=0),
        max((each.levels for each in reaches), default=0),
    )


def _behind(cell: Any, before: _Reach) -> _Reach:
    if _REGISTER.fullmatch(cell["type"]):
        return _Reach(before.stage + 1, 0)
    return _Reach(before.stage, before.levels + (cell["type"] not in _NO_LEVEL))
