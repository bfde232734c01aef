"""Where a ring NIC is, from its registers."""

from amaranth.lib import data

__all__ = ["Place"]


class Place(data.StructLayout):
    """Settings and what follows from them, a cycle later.

    predecessor: as in RingPlace; successor: the next rank.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "job": 32,
                "epoch": 32,
                "rank": 16,
                "ranks": 16,
                "plan": 8,
                "predecessor": 16,
                "successor": 16,
            }
        )
