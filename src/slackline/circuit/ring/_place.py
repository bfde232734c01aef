"""A ring NIC's position in the ring, from its registers."""

from amaranth.lib import data

__all__ = ["Place"]


class Place(data.StructLayout):
    """A ring NIC's settings, and values computed from the settings a cycle later.

    `predecessor` is defined as in RingPlace; `successor` is the next rank in the ring.
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
