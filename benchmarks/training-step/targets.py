"""The targets of every model on every network; a target that was not measured is skipped."""

from __future__ import annotations

from _harness.report import Target
from cases import (
    CELLS,
    DDP_DEFAULT,
    DIGITS,
    FSDP2,
    GLOO,
    ONE_HOST_2,
    ONE_HOST_4,
    PCCO,
    SHARDED,
    SLACKLINE,
    Cell,
)
from results import Results

GLOO_OVER_PCCO, OURS_OVER_PCCO = 1.0, 0.98
"""The smallest allowed ratios of DDP over gloo and over slackline to PCCO in step time.

DDP has its best settings.
"""
FASTER, FASTER_SHARE = 1.0, 0.5
"""The ratio of DDP over slackline to PCCO in step time, and the share of the cells of one host in
which it must be reached.
"""
FOUR_HOSTS = 1.05
"""The smallest allowed ratio of DDP over slackline to PCCO in step time, between four hosts.

DDP has its best settings.
"""
FSDP2_ONE_HOST, FSDP2_LAB = 1.3, 1.0
"""The smallest allowed ratios of FSDP2 over gloo to FSDP2 over slackline in step time.

The first ratio is for one host, the second for a lab.
"""
DIGITS_DEFAULT = {ONE_HOST_2: 1.08, ONE_HOST_4: 1.15}
"""The smallest allowed ratios of DDP over gloo to PCCO in step time, for the digits network.

DDP has torch's default bucket size.
"""


def targets(results: Results) -> list[Target]:
    """Return all targets, in the order of networks and models."""
    return [*(target for cell in CELLS for target in _of_cell(results, cell)), _share(results)]


def _of_cell(results: Results, cell: Cell) -> list[Target]:
    gloo, ours = results.best_ddp(cell, GLOO), results.best_ddp(cell, SLACKLINE)
    four_hosts = not cell.network.one_host and cell.network.ranks == 4
    found = [
        Target(
            name=f"{cell.name}: DDP over gloo, best settings / PCCO",
            target=GLOO_OVER_PCCO,
            measured=results.ratio(cell, gloo, PCCO),
        ),
        Target(
            name=f"{cell.name}: DDP over slackline, best settings / PCCO",
            target=FOUR_HOSTS if four_hosts else OURS_OVER_PCCO,
            measured=results.ratio(cell, ours, PCCO),
        ),
    ]
    if cell.model in SHARDED:
        found.append(_fsdp2(results, cell))
    if cell.model == DIGITS and cell.network in DIGITS_DEFAULT:
        found.append(
            Target(
                name=f"{cell.name}: DDP over gloo, default bucket / PCCO",
                target=DIGITS_DEFAULT[cell.network],
                measured=results.ratio(cell, DDP_DEFAULT[GLOO], PCCO),
            )
        )
    return found


def _fsdp2(results: Results, cell: Cell) -> Target:
    return Target(
        name=f"{cell.name}: FSDP2 over gloo / FSDP2 over slackline",
        target=FSDP2_ONE_HOST if cell.network.one_host else FSDP2_LAB,
        measured=results.ratio(cell, FSDP2[GLOO], FSDP2[SLACKLINE]),
    )


def _share(results: Results) -> Target:
    """Return the target for the share of one host's cells in which PCCO is the faster one.

    The share is measured only if all of these cells are.
    """
    cells = [cell for cell in CELLS if cell.network.one_host]
    ratios = [results.ratio(cell, results.best_ddp(cell, SLACKLINE), PCCO) for cell in cells]
    known = [ratio for ratio in ratios if ratio is not None]
    whole = len(known) == len(cells)
    return Target(
        name="share of the cells of one host: DDP over slackline, best settings / PCCO from "
        f"{FASTER:.1f} on",
        target=FASTER_SHARE,
        measured=sum(ratio >= FASTER for ratio in known) / len(cells) if whole else None,
    )
