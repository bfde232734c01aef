"""Where a ring NIC is, from its registers."""

from amaranth.lib import data

__all__ = ["Place"]


class Place(data.StructLayout):
    """Settings and what follows from them, a cycle later.

    first, last, passes_on, predecessor, successor: as in RingPlace.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "job": 32,
                "epoch": 32,
                "rank": 16,
                "plan": 8,
                "predecessor": 16,
                "successor": 16,
                "first": 1,
                "last": 1,
                "passes_on": 1,
            }
        )
