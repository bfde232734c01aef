"""Reservation of a group's message tags for parts of the library.

Reductions and messages have separate tags: a reduction is never matched with a send or receive that
has the same tag. All ranks reserve tags in the same order, so all ranks get the same tags.

    reductions   0, 1, 2, ... in the order of the reservations
    messages     user programs from 0 upwards; reservations from the top downwards

A collective that is posted in a callback has, in place of a tag, an identity of its own: a number
from CALLBACK_TAGS on, which the ranks derive alike and use once.

    callback_tag          the number of an operation, the callback of it, the place in the callback
    nested_callback_tag   a hash, for all that does not fit into these numbers
"""

from slackline.errors import UsageError

__all__ = [
    "CALLBACK_TAGS",
    "MOST_TAGS",
    "PLACES",
    "TagAllocator",
    "callback_tag",
    "in_callback",
    "nested_callback_tag",
]

MOST_TAGS = 1 << 24
"""The number of tags: a frame has 24 bits for its tag."""
_LOWEST_MESSAGE = 1 << 20
"""The lowest tag that the library reserves for messages. User programs, which usually count from 0,
have the lower tags."""
CALLBACK_TAGS = 7 << 56
"""The lowest identity of a collective that is posted in a callback. The engine reads the class of
an operation in these bits."""
_NESTED_CALLBACK_TAGS = 8 << 56
_END_OF_CALLBACK_TAGS = 9 << 56
PLACES = 1 << 12
"""The number of callbacks, and of places in each, that `callback_tag` distinguishes."""


def callback_tag(number: int, callback: int, place: int) -> int:
    """Return the identity of a collective in a callback of the operation `number` of its group.

    `callback` and `place` must be below PLACES.
    """
    return CALLBACK_TAGS | callback << 44 | place << 32 | number & 0xFFFF_FFFF


def nested_callback_tag(identity: int) -> int:
    """Return the identity, from 56 bits of a hash, of any other collective in a callback."""
    return _NESTED_CALLBACK_TAGS | identity


def in_callback(tag: int | None) -> bool:
    """Return whether `tag` is the identity of a collective that is posted in a callback."""
    return tag is not None and CALLBACK_TAGS <= tag < _END_OF_CALLBACK_TAGS


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
