"""The start of a rank, in a module that the conductor can import without loading torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _harness.ranks import Place
    from performer import Performer


def start_rank(backend: str, place: Place) -> Performer:
    """Return the performer of one rank of a group of `backend`; load torch."""
    from performer import Performer

    return Performer(place, backend)
