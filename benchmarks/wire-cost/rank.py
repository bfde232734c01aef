"""The start of a rank. The module itself does not load torch: the conductor does not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _harness.ranks import Place
    from performer import Performer


def start_rank(backend: str, place: Place) -> Performer:
    """Return the performer of one rank of a group of `backend`; loads torch."""
    from performer import Performer

    return Performer(place, backend)
