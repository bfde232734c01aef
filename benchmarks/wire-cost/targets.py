"""The targets of slackline over TCP; a target that was not measured is skipped."""

from __future__ import annotations

from _harness.report import Target
from cases import CELLS, KIB_64, MB_100, MBIT, MIB_16, Cell, Contestant
from results import Results, ratio

LOOPBACK_PROCESSOR, LAB_PROCESSOR = 0.75, 1.0
"""The largest allowed ratios of slackline's processor time a byte to gloo's: loopback, lab.

In a lab the ratio is required for sizes from LAB_PROCESSOR_FROM on.
"""
LAB_PROCESSOR_FROM = MIB_16.nbytes

WIRE_ABOVE = {Contestant.GLOO: -0.5, Contestant.RING: 0.0}
"""The smallest allowed lead over other contestants, in percent of the wire.

The lead is required for all sizes but the smallest.
"""
SLOW_RATE_BPS, SLOW_WIRE_PERCENT = 200 * MBIT, 98.5
"""A rate in bits per second, and the smallest allowed percentage of the wire at that rate.

The percentage is required for all sizes but the smallest.
"""

SPEED_RANKS = 4
SPEED = {MIB_16: 1.4, MB_100: 1.3}
"""The smallest allowed ratios of gloo's time to slackline's on loopback, by size."""


def targets(results: Results) -> list[Target]:
    """Return all targets, in the order of networks and sizes."""
    return [target for cell in CELLS for target in _of_cell(results, cell)]


def _of_cell(results: Results, cell: Cell) -> list[Target]:
    return _of_loopback(results, cell) if cell.network.one_host else _of_lab(results, cell)


def _of_loopback(results: Results, cell: Cell) -> list[Target]:
    found = [_processor(results, cell, LOOPBACK_PROCESSOR)]
    if cell.network.ranks == SPEED_RANKS and cell.size in SPEED:
        gloo = results.seconds(cell, Contestant.GLOO)
        speed = ratio(gloo, results.seconds(cell, Contestant.TCP))
        found.append(
            Target(
                name=f"{cell.name}: time, gloo / slackline-tcp",
                target=SPEED[cell.size],
                measured=_rounded(speed),
            )
        )
    return found


def _of_lab(results: Results, cell: Cell) -> list[Target]:
    found = []
    if cell.size.nbytes >= LAB_PROCESSOR_FROM:
        found.append(_processor(results, cell, LAB_PROCESSOR))
    if cell.size == KIB_64:
        return found
    ours = results.percent(cell, Contestant.TCP)
    for other, least in WIRE_ABOVE.items():
        theirs = results.percent(cell, other)
        found.append(
            Target(
                name=f"{cell.name}: percent of the wire, slackline-tcp - {other}",
                target=least,
                measured=None if ours is None or theirs is None else round(ours - theirs, 3),
            )
        )
    if cell.network.rate_bps == SLOW_RATE_BPS:
        found.append(
            Target(
                name=f"{cell.name}: percent of the wire",
                target=SLOW_WIRE_PERCENT,
                measured=_rounded(ours),
            )
        )
    return found


def _processor(results: Results, cell: Cell, most: float) -> Target:
    ours = results.processor_ns(cell, Contestant.TCP)
    return Target(
        name=f"{cell.name}: processor time a byte, slackline-tcp / gloo",
        target=most,
        measured=_rounded(ratio(ours, results.processor_ns(cell, Contestant.GLOO))),
        bound="at most",
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
