"""The entry point of a rank, in a module that the main process imports without loading torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _harness.ranks import Place
    from cost_performer import CostPerformer
    from performer import Performer


def start_rank(place: Place) -> Performer:
    """Return the object that does a rank's work; load torch and the compared libraries."""
    from performer import Performer

    return Performer(place)


def start_cost_rank(place: Place) -> CostPerformer:
    """Return the object that does the work of a rank whose steps are divided into parts."""
    from cost_performer import CostPerformer

    return CostPerformer(place)
