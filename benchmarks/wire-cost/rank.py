"""The entry point of a rank, in a module that the main process imports without loading torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _harness.ranks import Place
    from performer import Performer


def start_rank(backend: str, place: Place) -> Performer:
    """Return the object that does the work of one rank of a group of `backend`; load torch."""
    from performer import Performer

    return Performer(place, backend)
