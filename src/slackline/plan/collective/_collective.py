"""The collectives that have plans, and the chunks each rank starts with and must end with."""

from enum import IntEnum

__all__ = ["Collective"]


class Collective(IntEnum):
    """A communication operation of a group; the values are the codes in the frame header."""

    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    BROADCAST = 4
    REDUCE = 5
    GATHER = 6
    SCATTER = 7
    ALL_TO_ALL = 8
    BARRIER = 9
    POINT_TO_POINT = 10

    @property
    def label(self) -> str:
        """The collective's name in texts and messages, such as "all_reduce"."""
        return self.name.lower()

    @property
    def reduces(self) -> bool:
        """Whether the collective combines the ranks' contributions; a barrier's are empty."""
        return self in _REDUCING

    @property
    def splits(self) -> bool:
        """Whether the chunks of the collective's plans are parts of one buffer."""
        return self in _SPLITTING

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root; the root of POINT_TO_POINT is the sender."""
        return self in _ROOTED

    def has(self, rank: int, chunk: int, ranks: int, root: int | None) -> bool:
        """Return whether `rank` has data for `chunk` before the first instruction."""
        match self:
            case Collective.ALL_GATHER | Collective.GATHER:
                return rank == chunk
            case Collective.BROADCAST | Collective.SCATTER | Collective.POINT_TO_POINT:
                return rank == root
            case Collective.ALL_TO_ALL:
                return rank == chunk // ranks
            case _:
                return True

    def due(self, rank: int, chunk: int, ranks: int, root: int | None) -> bool:
        """Return whether `rank` must have the final value of `chunk` after the last instruction."""
        match self:
            case Collective.REDUCE_SCATTER | Collective.SCATTER:
                return rank == chunk
            case Collective.REDUCE | Collective.GATHER:
                return rank == root
            case Collective.ALL_TO_ALL:
                return rank == chunk % ranks
            case Collective.POINT_TO_POINT:
                return rank != root
            case _:
                return True


_REDUCING = {
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.REDUCE,
    Collective.BARRIER,
}
_SPLITTING = {
    Collective.ALL_REDUCE,
    Collective.REDUCE,
    Collective.BROADCAST,
    Collective.BARRIER,
    Collective.POINT_TO_POINT,
}
_ROOTED = {
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.GATHER,
    Collective.SCATTER,
    Collective.POINT_TO_POINT,
}
