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
    SLACKLINE,
    TENSORS,
    Cell,
)
from results import Results

GLOO_OVER_PCCO = 1.0
"""The smallest allowed ratio of DDP over gloo, with its best bucket size, to PCCO in step time."""
PCCO_OVER_DDP, PCCO_OVER_DDP_TENSORS = 1.02, 1.05
"""The largest allowed ratios of PCCO to DDP over slackline in step time.

DDP has its best bucket size. The second ratio is for the model of 1,000 tensors, which are 1,000
operations for PCCO and a few for DDP.
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
    return [target for cell in CELLS for target in _of_cell(results, cell)]


def _of_cell(results: Results, cell: Cell) -> list[Target]:
    gloo, ours = results.best_ddp(cell, GLOO), results.best_ddp(cell, SLACKLINE)
    found = [
        Target(
            name=f"{cell.name}: DDP over gloo, best bucket / PCCO",
            target=GLOO_OVER_PCCO,
            measured=results.ratio(cell, gloo, PCCO),
        ),
        Target(
            name=f"{cell.name}: PCCO / DDP over slackline, best bucket",
            target=PCCO_OVER_DDP_TENSORS if cell.model == TENSORS else PCCO_OVER_DDP,
            measured=results.ratio(cell, PCCO, ours),
            bound="at most",
        ),
        Target(
            name=f"{cell.name}: FSDP2 over gloo / FSDP2 over slackline",
            target=FSDP2_ONE_HOST if cell.network.one_host else FSDP2_LAB,
            measured=results.ratio(cell, FSDP2[GLOO], FSDP2[SLACKLINE]),
        ),
    ]
    if cell.model == DIGITS and cell.network in DIGITS_DEFAULT:
        found.append(
            Target(
                name=f"{cell.name}: DDP over gloo, default bucket / PCCO",
                target=DIGITS_DEFAULT[cell.network],
                measured=results.ratio(cell, DDP_DEFAULT[GLOO], PCCO),
            )
        )
    return found
