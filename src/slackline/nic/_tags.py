"""Reservation of a group's message tags for parts of the library.

Reductions and messages have separate tags: a reduction is never matched with a send or receive that
has the same tag. All ranks reserve tags in the same order, so all ranks get the same tags.

    reductions   0, 1, 2, ... in the order of the reservations
    messages     user programs from 0 upwards; reservations from the top downwards
"""

from slackline.errors import UsageError

__all__ = ["MOST_TAGS", "TagAllocator"]

MOST_TAGS = 1 << 24
"""The number of tags: a frame has 24 bits for its tag."""
_LOWEST_MESSAGE = 1 << 20
"""The lowest tag that the library reserves for messages. User programs, which usually count from 0,
have the lower tags."""


class TagAllocator:
    """The tags of one group that are still free for the library's own use."""

    def __init__(self) -> None:
        self._reductions = 0
        self._messages = MOST_TAGS

    def reserve_reductions(self, count: int) -> int:
        """Reserve `count` tags for reductions; return the first.

        Raises UsageError if too few are left.
        """
        first = self._reductions
        if first + count > MOST_TAGS:
            raise UsageError(
                f"a group has {MOST_TAGS} tags for reductions, of which {first} are reserved: "
                f"no room for {count} more"
            )
        self._reductions = first + count
        return first

    def reserve_messages(self, count: int) -> int:
        """Reserve `count` tags for sends and receives; return the first.

        Raises UsageError if too few are left.
        """
        first = self._messages - count
        if first < _LOWEST_MESSAGE:
            raise UsageError(
                f"a group has {MOST_TAGS - _LOWEST_MESSAGE} tags to reserve for messages, of which "
                f"{MOST_TAGS - self._messages} are reserved: no room for {count} more"
            )
        self._messages = first
        return first
