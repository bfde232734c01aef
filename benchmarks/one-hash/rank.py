"""The entry point of a rank, in a module that the main process imports without loading torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _harness.ranks import Place
    from performer import Performer


def start_rank(place: Place) -> Performer:
    """Return the object that does a rank's work; load torch and slackline."""
    from performer import Performer

    return Performer(place)
